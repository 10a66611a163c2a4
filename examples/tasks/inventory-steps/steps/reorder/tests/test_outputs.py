import subprocess
import tempfile
import unittest
from pathlib import Path


class TestReorder(unittest.TestCase):
    def reorder(self, rows):
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.csv"
            table.write_text("item,count,minimum\n" + rows)
            done = subprocess.run(
                ["bash", "/app/reorder.sh", str(table)], capture_output=True, text=True, timeout=10
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_what_is_missing_is_listed(self):
        self.assertEqual(self.reorder("rope,12,20\nlamp,3,2\nflag,0,5\n"), "rope 8\nflag 5\n")

    def test_numbers_are_compared_as_numbers(self):
        self.assertEqual(self.reorder("a,9,10\nb,10,9\n"), "a 1\n")

    def test_nothing_missing(self):
        self.assertEqual(self.reorder("rope,20,20\n"), "")
