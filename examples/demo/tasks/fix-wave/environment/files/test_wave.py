from wave import wave

assert wave(7, 3) == 4
print("ok: wave(7, 3) is 4")
