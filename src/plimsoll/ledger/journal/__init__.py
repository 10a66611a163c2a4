"""The journal: events in one SQLite file, its writer, lock and location."""
