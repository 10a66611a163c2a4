"""The books: the state of a run, derived from the events of its ledger."""
