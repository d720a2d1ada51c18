"""Request bodies from plain values, so that a case names only the fields that matter to it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import body_class
from reference_broker.wire.produce import ProduceRequest
from reference_broker.wire.schema import SchemaField, schema_fields

OWN = {int(ApiKey.FETCH): FetchRequest, int(ApiKey.PRODUCE): ProduceRequest}


def body(api_key: int, values: object) -> object:
    """Makes the body of a request, in the class of the highest version. ``values`` is a mapping of the fields to plain
    values, with mappings for structs, milliseconds for times and 16 bytes for IDs. A field that is not named has its
    default. A body that is made already is returned as it is: Fetch and Produce have classes that are short to write.

    Raises KeyError for a field that the API does not have.
    """
    if not isinstance(values, Mapping):
        return values
    if api_key in OWN:
        return OWN[api_key](**values)
    return entity_of(body_class(api_key, "request"), values)


def entity_of(entity: type, values: Mapping[str, Any]) -> object:
    """Makes one from plain values, as ``body`` does."""
    known = {each.name: each for each in schema_fields(entity)}
    unknown = values.keys() - known.keys()
    if unknown:
        raise KeyError(f"{entity.__name__} has no field {', '.join(sorted(unknown))}")
    filled = {name: _value(each, values[name]) if name in values else each.default for name, each in known.items()}
    return entity(**filled)


def _value(field: SchemaField, given: Any) -> object:
    if field.is_array and given is not None:
        return tuple(_single(field, each) for each in given)
    return _single(field, given)


def _single(field: SchemaField, given: Any) -> object:
    if field.struct is not None and isinstance(given, Mapping):
        return entity_of(field.struct, given)
    if field.kind.startswith("timedelta") and isinstance(given, int):
        return timedelta(milliseconds=given)
    if field.kind.startswith("datetime") and isinstance(given, int):
        return datetime.fromtimestamp(given / 1000, UTC)
    if field.kind == "uuid" and isinstance(given, bytes):
        return UUID(bytes=given)
    return given
