import sys
import unittest

sys.path.append("/app")


class TestParse(unittest.TestCase):
    def check(self, text, expected):
        from settings import parse

        found = parse(text)
        self.assertEqual(found, expected)
        # 1 and True are equal, so the types are compared too.
        types = {s: {k: type(v) for k, v in keys.items()} for s, keys in found.items()}
        wanted = {s: {k: type(v) for k, v in keys.items()} for s, keys in expected.items()}
        self.assertEqual(types, wanted)

    def check_error(self, text, line):
        from settings import SettingsError, parse

        with self.assertRaises(SettingsError) as caught:
            parse(text)
        self.assertEqual(caught.exception.line, line)

    def test_sections_and_keys(self):
        self.check("[a]\nx = one\n[b]\ny=two words\n", {"a": {"x": "one"}, "b": {"y": "two words"}})

    def test_nothing_at_all(self):
        self.check("", {})
        self.check("\n  \n# only a comment\n", {})

    def test_lines_before_the_first_section(self):
        self.check("k = v\n[a]\n", {"": {"k": "v"}, "a": {}})

    def test_a_section_goes_on(self):
        self.check("[a]\nx=1\n[b]\n[ a ]\ny=2\nx=3", {"a": {"x": 3, "y": 2}, "b": {}})

    def test_the_types_of_values(self):
        self.check(
            '[t]\na = true\nb = false\nc = -12\nd = +7\ne = 1.5\nf = True\ng = " 3 "\nh =\n',
            {
                "t": {
                    "a": True,
                    "b": False,
                    "c": -12,
                    "d": 7,
                    "e": "1.5",
                    "f": "True",
                    "g": " 3 ",
                    "h": "",
                }
            },
        )

    def test_a_value_may_hold_an_equals_sign(self):
        self.check("url = a?b=c\n", {"": {"url": "a?b=c"}})

    def test_comments(self):
        self.check("  # no\n;no = no\nx = a # b\n", {"": {"x": "a # b"}})

    def test_errors_name_their_line(self):
        self.check_error("[a]\n\nno value here\n", 3)
        self.check_error("[a\n", 1)
        self.check_error("x = 1\n = 2\n", 2)
        self.check_error("# first\n[  ]\n", 2)
