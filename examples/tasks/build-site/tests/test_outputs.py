import unittest
from html.parser import HTMLParser
from pathlib import Path

POSTS = [
    ("tide-tables.html", "When x < y: reading tide tables", "2024-05-01"),
    ("gulls.html", "Gulls <3", "2024-02-29"),
    ("lamps.html", "Lamps & lenses", "2023-11-02"),
    ("first.html", "The first post", "2023-01-15"),
]
PAGE = Path("/app/site/index.html")


class Items(HTMLParser):
    """Collects each list item as its link, the text of the link, the text after it."""

    def __init__(self):
        super().__init__()
        self.lists = 0
        self.items = []
        self.inside = ""

    def handle_starttag(self, tag, attributes):
        self.lists += tag == "ul"
        if tag == "li":
            self.items.append(["", "", ""])
        if tag == "a" and self.items:
            self.items[-1][0] = dict(attributes).get("href", "")
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = "" if tag == "li" else "after"

    def handle_data(self, data):
        if self.items and self.inside in ("a", "after"):
            self.items[-1][1 if self.inside == "a" else 2] += data


class TestSite(unittest.TestCase):
    def test_the_verifier_sees_the_page_and_not_the_posts(self):
        self.assertTrue(PAGE.is_file(), f"{PAGE} is not there")
        self.assertFalse(Path("/app/posts").exists())

    def test_the_list_is_right(self):
        page = Items()
        page.feed(PAGE.read_text())
        self.assertEqual(page.lists, 1)
        found = [(link, title, date.strip()) for link, title, date in page.items]
        self.assertEqual(found, POSTS)

    def test_titles_are_escaped(self):
        text = PAGE.read_text()
        for title in ("Lamps &amp; lenses", "When x &lt; y: reading tide tables", "Gulls &lt;3"):
            self.assertIn(title, text)
