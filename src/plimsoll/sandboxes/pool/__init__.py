"""A pool of sandboxes: prewarmed, leased to trials, and reset for reuse.

`Pool` in `pool.py` is a backend around another one, so trials need not know about it.
"""
