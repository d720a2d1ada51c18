"""Changes fields of requests and answers, for brokers with a wrong habit."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from chaos.mutants.mutant import Function

ANSWERS = "reference_broker.wire.messages:encode_response"
REQUESTS = "reference_broker.wire.messages:decode_request"

Change = Callable[[str, Any], Any]
"""Gives the new value of a field, by its name and its value."""


def changed(value: Any, change: Change) -> Any:
    """A copy of an answer in which each field, at any depth, went through ``change``."""
    if isinstance(value, list | tuple):
        return type(value)(changed(each, change) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    given = {each.name: getattr(value, each.name) for each in fields(value)}
    return replace(value, **{name: change(name, changed(each, change)) for name, each in given.items()})


def fixed(**values: Any) -> Change:
    """The named fields get these values."""
    return lambda name, value: values.get(name, value)


def answered(original: Function, api_key: int, version: int, correlation_id: int, body: Any, change: Change) -> Any:
    return original(api_key, version, correlation_id, changed(body, change))


def asked(body: Any, api_key: int, wanted: int, change: Change) -> Any:
    return changed(body, change) if api_key == wanted else body
