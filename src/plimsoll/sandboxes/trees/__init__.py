"""Copies files and folders into and out of a sandbox.

One side packs a tree into a pipe, the other unpacks it. `stream` defines the format. Only the
standard library is used: one of the two sides may run inside the sandbox.
"""

from plimsoll.sandboxes.trees.packing import pack, pack_unless_link
from plimsoll.sandboxes.trees.stream import TreeError
from plimsoll.sandboxes.trees.unpacking import Rules, unpack

__all__ = ["Rules", "TreeError", "pack", "pack_unless_link", "unpack"]
