import unittest

from durations.format import format_duration
from durations.parse import parse


class TestParse(unittest.TestCase):
    def test_units(self):
        self.assertEqual(parse("1h30m"), 5400)
        self.assertEqual(parse("2.5s"), 2.5)

    def test_milliseconds(self):
        self.assertAlmostEqual(parse("250ms"), 0.25)

    def test_nothing_to_read(self):
        with self.assertRaises(ValueError):
            parse("soon")

    def test_what_is_written_can_be_read(self):
        for seconds in (1, 59, 60, 3601, 86399):
            self.assertEqual(parse(format_duration(seconds)), seconds)
