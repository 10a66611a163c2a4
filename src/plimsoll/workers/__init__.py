"""Who runs trials: the worker, its supervisor, its memory's upkeep, and the engines."""
