"""The standalone gateway: `plimsoll gateway`, its admin API, health and metrics."""
