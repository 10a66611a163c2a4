"""Trajectories: the message graph, its files, samples and exports."""
