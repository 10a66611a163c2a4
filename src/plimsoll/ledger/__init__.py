"""The ledger: append-only accounting of rollouts. None lost, none twice, none too old."""
