def format_duration(seconds):
    """A duration in whole seconds as text, largest unit first, units that are 0 left out."""
    if seconds == 0:
        return "0s"
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "m"), (seconds, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)
