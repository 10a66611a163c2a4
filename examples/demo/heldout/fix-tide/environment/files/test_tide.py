from tide import tide

assert tide(8, 3) == 11
print("ok: tide(8, 3) is 11")
