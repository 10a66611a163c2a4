import hashlib
import subprocess
import sys
import unittest
from pathlib import Path

SHOWN = Path("/app/shop/test_cart.py")
SHOWN_SHA256 = "c6378d3efcd8c6bb9b9f46eb125865e038d630ec24d31daa399bcfb67a14db02"

sys.path.append("/app")


class TestShown(unittest.TestCase):
    def test_the_packages_own_tests_are_unchanged_and_pass(self):
        self.assertEqual(hashlib.sha256(SHOWN.read_bytes()).hexdigest(), SHOWN_SHA256)
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "discover", "-s", "/app", "-t", "/app"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 5 tests", done.stderr)


class TestHidden(unittest.TestCase):
    def cart(self, *arguments):
        from shop.cart import Cart

        return Cart(*arguments)

    def test_a_cart_does_not_share_the_items_it_was_given(self):
        items = {"rope": (100, 1)}
        self.cart(items).add("hook", 5)
        self.assertEqual(items, {"rope": (100, 1)})

    def test_removing_takes_all_of_it(self):
        cart = self.cart()
        cart.add("rope", 100, 4)
        cart.remove("rope")
        self.assertEqual((cart.items, cart.total()), ({}, 0))

    def test_a_negative_quantity_changes_nothing(self):
        cart = self.cart()
        with self.assertRaises(ValueError):
            cart.add("rope", 100, -2)
        self.assertEqual(cart.items, {})

    def test_a_discount_is_exact_for_large_sums(self):
        cart = self.cart()
        cart.add("ship", 10**17 + 1)
        self.assertEqual(cart.total(discount=1), 99 * (10**17 + 1) // 100)
        self.assertEqual(cart.total(discount=100), 0)
