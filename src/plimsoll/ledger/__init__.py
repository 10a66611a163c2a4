"""The accounting of rollouts: nothing lost, nothing twice, nothing too old."""
