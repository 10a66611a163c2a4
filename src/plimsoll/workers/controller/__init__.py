"""The controller's side: the supervisor, its workers and their tickets."""
