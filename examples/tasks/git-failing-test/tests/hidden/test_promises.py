import unittest


class TestPromises(unittest.TestCase):
    def check(self, text, expected):
        from durations.parse import parse

        self.assertAlmostEqual(parse(text), expected)

    def test_milliseconds_after_other_units(self):
        self.check("1s250ms", 1.25)
        self.check("1h2m3s4ms", 3723.004)
        self.check("1500ms", 1.5)

    def test_minutes_are_still_minutes(self):
        self.check("5m", 300)
        self.check("5m30s", 330)

    def test_spaces_do_not_count(self):
        self.check("  1h 30m ", 5400)

    def test_anything_else_is_an_error(self):
        from durations.parse import parse

        for text in ("", "  ", "5m extra", "x5m", "5", "m", "1h-3m", "5mss", "1.h", "5 m"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse(text)
