"""Messages from the values of their fields."""

from typing import Any

from reference_broker.wire.schema import schema_fields


def message_from(entity: type, values: dict[str, Any]) -> Any:
    """Return a message of the class that handlers see; arrays of structs are lists of dicts."""
    known = {}
    for field in schema_fields(entity):
        value = values.get(field.name, field.default)
        if field.struct is not None and value is not None and field.is_array:
            value = tuple(message_from(field.struct, item) for item in values.get(field.name, ()))
        known[field.name] = value
    return entity(**known)
