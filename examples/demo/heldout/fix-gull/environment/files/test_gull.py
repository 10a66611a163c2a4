from gull import gull

assert gull(8, 4) == 32
print("ok: gull(8, 4) is 32")
