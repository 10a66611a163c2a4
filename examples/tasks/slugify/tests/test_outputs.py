import sys
import unittest

sys.path.append("/app")


class TestSlugify(unittest.TestCase):
    def check(self, expected, *arguments):
        from slug import slugify

        self.assertEqual(slugify(*arguments), expected)

    def test_words_are_joined(self):
        self.check("low-tide-at-06-30", "Low tide at 06:30")

    def test_separators_collapse_and_ends_are_clean(self):
        self.check("a-b-c", "  --A__b ... c!? ")

    def test_accents_are_dropped(self):
        self.check("cafe-uber-nandu", "Café Über Ñandú")

    def test_apostrophes_separate_nothing(self):
        self.check("the-keepers-dont", "The keeper's don’t")

    def test_it_is_cut_between_words(self):
        self.check("the-harbour", "The harbour master", 14)

    def test_the_limit_itself_is_allowed(self):
        self.check("the-harbour", "The harbour master", 11)

    def test_a_long_first_word_is_cut(self):
        self.check("antidis", "Antidisestablishmentarianism today", 7)

    def test_nothing_to_write(self):
        self.check("untitled", "?!…")
        self.check("untitled", "", 3)

    def test_the_usual_limit_is_forty(self):
        self.check("x" * 40, "x" * 41)
