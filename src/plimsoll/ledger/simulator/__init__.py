"""The simulator: the rules of the ledger driven by random workloads and faults."""
