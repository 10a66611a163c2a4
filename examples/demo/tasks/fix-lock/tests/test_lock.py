from lock import lock

assert lock(8, 3) == 5
print("ok: lock(8, 3) is 5")
