import os
import pwd
import unittest
from pathlib import Path

PLAN = Path("/app/harbour/plan.txt")


class TestPlan(unittest.TestCase):
    def test_the_plan_is_right(self):
        expected = "Ariel mole\nBrig south\nClio north\nDora none\nElbe south\n"
        self.assertEqual(PLAN.read_text(), expected)

    def test_the_plan_was_written_by_keeper(self):
        self.assertEqual(PLAN.owner(), "keeper")


class TestTheRest(unittest.TestCase):
    def test_the_tests_run_as_grader(self):
        self.assertEqual(pwd.getpwuid(os.getuid()).pw_name, "grader")

    def test_the_rules_are_as_they_were(self):
        rules = Path("/app/rules/berths.txt")
        self.assertEqual(rules.read_text(), "north 60\nsouth 25\nmole 110\n")
        self.assertEqual(rules.owner(), "root")
