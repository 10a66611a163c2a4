import unittest

from shop.cart import Cart


class TestCart(unittest.TestCase):
    def test_a_new_cart_is_empty(self):
        Cart().add("rope", 100)
        self.assertEqual(Cart().total(), 0)

    def test_adding_again_adds_up(self):
        cart = Cart()
        cart.add("rope", 100, 2)
        cart.add("rope", 90)
        self.assertEqual(cart.items, {"rope": (90, 3)})

    def test_a_quantity_of_zero_is_an_error(self):
        with self.assertRaises(ValueError):
            Cart().add("rope", 100, 0)

    def test_removing_what_is_not_there(self):
        with self.assertRaises(KeyError):
            Cart().remove("anchor")

    def test_the_total(self):
        cart = Cart()
        cart.add("lamp", 999)
        cart.add("hook", 5, 3)
        self.assertEqual(cart.total(), 1014)
        self.assertEqual(cart.total(discount=10), 912)
