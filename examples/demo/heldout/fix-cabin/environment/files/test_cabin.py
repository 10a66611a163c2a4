from cabin import cabin

assert cabin(7, 4) == 11
print("ok: cabin(7, 4) is 11")
