from quay import quay

assert quay(9, 3) == 6
print("ok: quay(9, 3) is 6")
