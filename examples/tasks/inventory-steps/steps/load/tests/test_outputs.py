import json
import unittest
from pathlib import Path


class TestLoad(unittest.TestCase):
    def test_the_stock_is_loaded(self):
        expected = {
            "rope": {"count": 12, "minimum": 20},
            "lamp": {"count": 3, "minimum": 2},
            "anchor": {"count": 1, "minimum": 1},
            "flag": {"count": 0, "minimum": 5},
            "chart": {"count": 40, "minimum": 10},
        }
        self.assertEqual(json.loads(Path("/app/stock.json").read_text()), expected)
