from wharf import wharf

assert wharf(8, 3) == 24
print("ok: wharf(8, 3) is 24")
