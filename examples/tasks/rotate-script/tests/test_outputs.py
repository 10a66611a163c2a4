import subprocess
import tempfile
import unittest
from pathlib import Path


class TestRotate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def make(self, **files):
        for name, text in files.items():
            (self.folder / name.replace("__", " ").replace("_", ".")).write_text(text)

    def rotate(self, *arguments):
        return subprocess.run(
            ["bash", "/app/rotate.sh", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=10,
        )

    def files(self):
        return {p.name: p.read_text() for p in self.folder.iterdir()}

    def test_the_first_rotation(self):
        self.make(log="a")
        done = self.rotate("log", "3")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(self.files(), {"log": "", "log.1": "a"})

    def test_copies_move_up_and_the_oldest_goes(self):
        self.make(log="c", log_1="b", log_2="a")
        self.assertEqual(self.rotate("log", "2").returncode, 0)
        self.assertEqual(self.files(), {"log": "", "log.1": "c", "log.2": "b"})

    def test_a_smaller_keep_removes_more(self):
        self.make(log="e", log_1="d", log_2="c", log_3="b", log_12="a")
        self.assertEqual(self.rotate("log", "2").returncode, 0)
        self.assertEqual(self.files(), {"log": "", "log.1": "e", "log.2": "d"})

    def test_a_gap_is_no_trouble(self):
        self.make(log="c", log_2="a")
        self.assertEqual(self.rotate("log", "5").returncode, 0)
        self.assertEqual(self.files(), {"log": "", "log.1": "c", "log.3": "a"})

    def test_names_with_spaces_and_other_endings(self):
        self.make(my__log="b", my__log_1="a", my__log_txt="keep")
        self.assertEqual(self.rotate("my log", "4").returncode, 0)
        self.assertEqual(
            self.files(), {"my log": "", "my log.1": "b", "my log.2": "a", "my log.txt": "keep"}
        )

    def test_mistakes_change_nothing_and_exit_with_2(self):
        self.make(log="a", log_1="b")
        for arguments in ([], ["log"], ["log", "0"], ["log", "two"], ["gone", "2"], ["log", "-1"]):
            with self.subTest(arguments=arguments):
                done = self.rotate(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertNotEqual(done.stderr, "")
                self.assertEqual(self.files(), {"log": "a", "log.1": "b"})
