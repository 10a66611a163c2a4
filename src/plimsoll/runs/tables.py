"""What every table of the config file is."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Table"]


class Table(BaseModel):
    """A table of the config file. The text under each field is what a person is told of it."""

    # Neither nan nor inf: no number here means anything without an end.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
