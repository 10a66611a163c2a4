from keel import keel

assert keel(9, 3) == 27
print("ok: keel(9, 3) is 27")
