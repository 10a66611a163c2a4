from tug import tug

assert tug(8, 4) == 32
print("ok: tug(8, 4) is 32")
