from oar import oar

assert oar(9, 4) == 13
print("ok: oar(9, 4) is 13")
