import unittest

from durations.format import format_duration


class TestFormat(unittest.TestCase):
    def test_units(self):
        self.assertEqual(format_duration(5400), "1h30m")
        self.assertEqual(format_duration(61), "1m1s")

    def test_zero(self):
        self.assertEqual(format_duration(0), "0s")
