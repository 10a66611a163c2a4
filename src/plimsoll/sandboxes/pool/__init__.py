"""Sandboxes that are started before they are asked for, and perhaps used again.

`Pool` in `pool.py` is a backend around another one, so that trials need not know of it.
"""
