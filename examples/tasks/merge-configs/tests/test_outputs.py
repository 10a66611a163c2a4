import json
import unittest
from pathlib import Path

MERGED = Path("/app/merged.json")

EXPECTED = {
    "cache": {"shared": {"ttl": 30, "url": "cache.internal"}, "size": 0},
    "mail": {"from": "harbour@example.org"},
    "name": "tides-local",
    "server": {"host": "0.0.0.0", "port": 9090, "tls": {"enabled": True}},
    "stations": ["leith"],
}


class TestMerged(unittest.TestCase):
    def test_the_values_are_merged(self):
        self.assertEqual(json.loads(MERGED.read_text()), EXPECTED)

    def test_the_file_is_indented_and_sorted(self):
        text = json.dumps(EXPECTED, indent=2, sort_keys=True) + "\n"
        self.assertEqual(MERGED.read_text(), text)
