"""Sessions: a trial's access to the policy, with its key, limits and trajectory."""
