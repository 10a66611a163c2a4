from lamp import lamp

assert lamp(9, 3) == 6
print("ok: lamp(9, 3) is 6")
