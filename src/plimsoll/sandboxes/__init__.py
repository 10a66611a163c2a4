"""Where agents run: one protocol, several backends. Kept import-free: `local.inside` loads it bare."""
