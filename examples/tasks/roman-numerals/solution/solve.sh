#!/bin/bash
cat >/app/roman.py <<'END'
SIGNS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]


def to_roman(number: int) -> str:
    if not 1 <= number <= 3999:
        raise ValueError(f"out of range: {number}")
    text = ""
    for value, sign in SIGNS:
        count, number = divmod(number, value)
        text += sign * count
    return text


def from_roman(text: str) -> int:
    number, rest = 0, text
    for value, sign in SIGNS:
        while rest.startswith(sign):
            number += value
            rest = rest[len(sign):]
    if rest or not 1 <= number <= 3999 or to_roman(number) != text:
        raise ValueError(f"not a numeral: {text!r}")
    return number
END
