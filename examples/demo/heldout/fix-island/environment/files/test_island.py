from island import island

assert island(8, 3) == 24
print("ok: island(8, 3) is 24")
