"""The processes of a local sandbox: zygote, monitor, init and command runners.

Uses the standard library alone.
"""
