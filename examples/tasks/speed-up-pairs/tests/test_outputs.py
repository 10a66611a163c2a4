import random
import sys
import unittest

sys.path.append("/app")


class Counted(int):
    """A whole number that counts what is done with it."""

    operations = 0


def counting(operation):
    plain = getattr(int, f"__{operation}__")

    def method(self, *others):
        Counted.operations += 1
        result = plain(self, *others)
        counted = operation in ARITHMETIC and result is not NotImplemented
        return Counted(result) if counted else result

    return method


ARITHMETIC = ("add", "radd", "sub", "rsub", "neg")
QUESTIONS = ("eq", "ne", "lt", "le", "gt", "ge", "hash", "int", "index")
for operation in ARITHMETIC + QUESTIONS:
    setattr(Counted, f"__{operation}__", counting(operation))


def slow(numbers, target):
    return sum(
        numbers[i] + numbers[j] == target
        for i in range(len(numbers))
        for j in range(i + 1, len(numbers))
    )


class TestPairs(unittest.TestCase):
    def test_small_lists_by_hand(self):
        from pairs import count_pairs

        cases = [
            ([], 0, 0),
            ([5], 10, 0),
            ([5, 5], 10, 1),
            ([5, 5, 5], 10, 3),
            ([1, 9, -4, 14], 10, 2),
            ([0, 0, 0, 0], 0, 6),
        ]
        for numbers, target, expected in cases:
            with self.subTest(numbers=numbers, target=target):
                self.assertEqual(count_pairs(numbers, target), expected)

    def test_random_lists_give_what_the_slow_way_gives(self):
        from pairs import count_pairs

        chance = random.Random(7)
        for _ in range(40):
            numbers = [chance.randint(-6, 6) for _ in range(chance.randint(0, 30))]
            target = chance.randint(-8, 8)
            before = list(numbers)
            self.assertEqual(count_pairs(numbers, target), slow(numbers, target))
            self.assertEqual(numbers, before)

    def test_the_operations_grow_with_the_length(self):
        from pairs import count_pairs

        for length in (50, 400):
            numbers = [Counted(n % 37) for n in range(length)]
            expected = slow([n % 37 for n in range(length)], 36)
            Counted.operations = 0
            self.assertEqual(count_pairs(numbers, Counted(36)), expected)
            print(f"length {length}: {Counted.operations} operations, limit {12 * length}")
            self.assertGreater(Counted.operations, 0)
            self.assertLessEqual(Counted.operations, 12 * length)
