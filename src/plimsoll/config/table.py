"""What every table of the config file is."""

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

__all__ = ["Table", "keys"]


class Table(BaseModel):
    """A table of the config file. The text under each field is what a person is told of it."""

    # Neither nan nor inf: no number here means anything without an end.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True
    )


def keys(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a table, by what they are called in the file."""
    return {field.alias or name: field for name, field in table.model_fields.items()}
