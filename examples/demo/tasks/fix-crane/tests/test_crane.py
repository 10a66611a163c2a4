from crane import crane

assert crane(7, 3) == 10
print("ok: crane(7, 3) is 10")
