"""Change fields of requests and responses, for brokers with a wrong habit."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from chaos.mutants.mutant import Function

RESPONSES = "reference_broker.wire.messages:encode_response"
REQUESTS = "reference_broker.wire.messages:decode_request"

Change = Callable[[str, Any], Any]
"""Returns the new value of a field, given its name and its value."""


def changed(value: Any, change: Change) -> Any:
    """Return a copy of a response in which ``change`` was applied to each field, at any depth."""
    if isinstance(value, list | tuple):
        return type(value)(changed(each, change) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    given = {field_.name: getattr(value, field_.name) for field_ in fields(value)}
    return replace(value, **{name: change(name, changed(each, change)) for name, each in given.items()})


def fixed(**values: Any) -> Change:
    """Return a change that sets the named fields to these values."""
    return lambda name, value: values.get(name, value)


def on_response(original: Function, api_key: int, version: int, correlation_id: int, body: Any, change: Change) -> Any:
    return original(api_key, version, correlation_id, changed(body, change))


def on_request(body: Any, api_key: int, wanted: int, change: Change) -> Any:
    return changed(body, change) if api_key == wanted else body
