from canal import canal

assert canal(8, 4) == 12
print("ok: canal(8, 4) is 12")
