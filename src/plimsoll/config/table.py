"""The base of all tables of the config file."""

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

__all__ = ["Table", "keys"]


class Table(BaseModel):
    """A table of the config file. The docstring of each field documents its key."""

    # Neither nan nor inf: every number must be finite.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True
    )


def keys(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a table by their keys in the file."""
    return {field.alias or name: field for name, field in table.model_fields.items()}
