import sys
import unittest

sys.path.append("/app")


class TestPages(unittest.TestCase):
    def test_page_count(self):
        from pages import page_count

        cases = [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (9, 3, 3), (10, 1, 10)]
        for total, size, expected in cases:
            with self.subTest(total=total, size=size):
                self.assertEqual(page_count(total, size), expected)

    def test_every_item_is_on_exactly_one_page(self):
        from pages import page, page_count

        for total in range(12):
            for size in range(1, 6):
                items = list(range(total))
                pages = [page(items, n, size) for n in range(1, page_count(total, size) + 1)]
                with self.subTest(total=total, size=size):
                    self.assertEqual([item for one in pages for item in one], items)
                    self.assertTrue(all(len(one) == size for one in pages[:-1]))

    def test_a_page_that_is_not_there_is_empty(self):
        from pages import page

        for number in (0, -1, 3, 99):
            with self.subTest(number=number):
                self.assertEqual(page([1, 2, 3, 4], number, 2), [])

    def test_page_of(self):
        from pages import page, page_of

        items = list(range(11))
        for index in items:
            with self.subTest(index=index):
                self.assertIn(index, page(items, page_of(index, 4), 4))
