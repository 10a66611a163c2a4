"""Pages of a list. The first page has the number 1."""


def page_count(total, size):
    """How many pages `total` items make; 0 for no items."""
    return total // size + 1


def page(items, number, size):
    """The items of one page; an empty list for a page that is not there."""
    start = number * size
    return items[start : start + size - 1]


def page_of(index, size):
    """The number of the page that holds the item at `index` (the first item has index 0)."""
    return index // size
