import unittest
from pathlib import Path


class TestHello(unittest.TestCase):
    def test_the_line_is_there(self)
        self.assertEqual(Path("/app/hello.txt").read_text(), "hello\n")
