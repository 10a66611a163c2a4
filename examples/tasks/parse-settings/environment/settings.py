class SettingsError(ValueError):
    """A line that cannot be read."""

    def __init__(self, line, why):
        super().__init__(f"line {line}: {why}")
        self.line = line


def parse(text):
    """The sections of a settings file, each a dict of its keys."""
    raise NotImplementedError
