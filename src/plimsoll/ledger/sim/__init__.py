"""A simulator with a virtual clock that drives the ledger's own code, faults included."""
