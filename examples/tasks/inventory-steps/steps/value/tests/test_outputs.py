import json
import unittest
from pathlib import Path


class TestValue(unittest.TestCase):
    def test_the_values_and_their_sum(self):
        expected = {
            "rope": 15000,
            "lamp": 26997,
            "anchor": 19900,
            "flag": 0,
            "chart": 18000,
            "total": 79897,
        }
        self.assertEqual(json.loads(Path("/app/value.json").read_text()), expected)
