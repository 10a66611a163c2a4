from shell import shell

assert shell(7, 4) == 28
print("ok: shell(7, 4) is 28")
