"""The config file plimsoll.toml: all tables, loading and dumping. Imports neither torch nor ray."""
