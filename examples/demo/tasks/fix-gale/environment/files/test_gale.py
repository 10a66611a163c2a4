from gale import gale

assert gale(7, 4) == 11
print("ok: gale(7, 4) is 11")
