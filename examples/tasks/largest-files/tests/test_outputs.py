import subprocess
import tempfile
import unittest
from pathlib import Path

SIZES = {
    "a": 10,
    "deep/er/b c": 500,
    "deep/x": 500,
    "deep/Z": 500,
    "empty": 0,
    "z": 4096,
    "-n": 90,
}


class TestLargest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="some folder ")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, size in SIZES.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
        (self.folder / "link").symlink_to("/usr/bin/env")

    def largest(self, count):
        done = subprocess.run(
            ["bash", "/app/largest.sh", str(self.folder), str(count)],
            capture_output=True,
            text=True,
            timeout=10,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_the_largest_one(self):
        self.assertEqual(self.largest(1), "4096\tz\n")

    def test_equal_sizes_stand_in_order(self):
        expected = "4096\tz\n500\tdeep/Z\n500\tdeep/er/b c\n500\tdeep/x\n"
        self.assertEqual(self.largest(4), expected)

    def test_more_than_there_are(self):
        lines = self.largest(50).splitlines()
        self.assertEqual(len(lines), len(SIZES))
        self.assertEqual(lines[-3:], ["90\t-n", "10\ta", "0\tempty"])
