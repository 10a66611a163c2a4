from buoy import buoy

assert buoy(7, 3) == 21
print("ok: buoy(7, 3) is 21")
