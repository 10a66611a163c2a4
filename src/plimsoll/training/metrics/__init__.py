"""The figures of each step: in the run's own journal, and wherever else a person looks at them."""
