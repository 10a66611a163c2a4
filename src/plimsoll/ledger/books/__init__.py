"""The books: the state that the events of a ledger add up to."""
