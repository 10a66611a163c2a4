"""Workers: the worker process, its controller, and the engines that start it."""
