"""The config file plimsoll.toml: every table, loaded, checked and dumped."""
