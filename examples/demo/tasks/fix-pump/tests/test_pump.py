from pump import pump

assert pump(6, 4) == 2
print("ok: pump(6, 4) is 2")
