"""Static checks of task folders: what would make a reward worthless, seen before a run."""
