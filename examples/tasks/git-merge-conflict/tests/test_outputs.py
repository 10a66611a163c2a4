import subprocess
import sys
import unittest

sys.path.append("/app")


def git(*arguments):
    done = subprocess.run(
        ["git", "-c", "safe.directory=/app", "-C", "/app", *arguments],
        capture_output=True,
        text=True,
        timeout=10,
    )
    return done.stdout.strip()


class TestMerge(unittest.TestCase):
    def test_main_is_a_merge_of_the_two_branches(self):
        subjects = git("log", "--no-walk=unsorted", "--format=%s", "main^1", "main^2")
        self.assertEqual(
            subjects.splitlines(), ["Refuse negative speeds", "Add knots, round the result"]
        )
        self.assertEqual(git("rev-parse", "main^2"), git("rev-parse", "feature/knots"))
        self.assertEqual(git("rev-list", "--count", "main"), "4")

    def test_main_is_checked_out_and_the_tree_is_clean(self):
        self.assertEqual(git("rev-parse", "--abbrev-ref", "HEAD"), "main")
        self.assertEqual(git("rev-list", "--count", "--merges", "HEAD"), "1")
        self.assertEqual(git("status", "--porcelain", "--", "convert.py"), "")

    def test_negative_speeds_are_refused(self):
        from convert import convert

        with self.assertRaises(ValueError):
            convert(-1, "m/s", "km/h")

    def test_knots_are_known_and_results_rounded(self):
        from convert import convert

        self.assertEqual(convert(10, "kn", "km/h"), 18.52)
        self.assertEqual(convert(1, "km/h", "kn"), 0.54)
        self.assertEqual(convert(0, "m/s", "kn"), 0)
