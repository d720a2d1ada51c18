"""Puts an error into an answer that had none, for the fault ``response_error``."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from reference_broker.wire.apis import is_known
from reference_broker.wire.errors import ErrorCode, known_error
from reference_broker.wire.messages import empty_response, has_error_code

ERROR_CODE: Final = "error_code"
NOT_BESIDE_AN_ERROR: Final = {"records": b"", "base_offset": -1}
"""What an item says that has an error: a broker that refuses sends no records and tells no offset."""


def stamped(api_key: int, version: int, body: object, code: int, code_in: str) -> object | None:
    """Returns the answer with the error, or None if it has no place for it (``vocabulary.CODE_PLACES``).

    Above all items an error leaves nothing else in the answer, as brokers do. In the items all else stays.
    """
    if body is None or not is_known(api_key, version):
        return None
    if code_in != "items" and has_error_code(api_key, version):
        return empty_response(api_key, version, known_error(code))  # type: ignore[arg-type]
    if code_in == "answer" or not is_dataclass(body):
        return None
    changed = _with_items(body, code)
    return None if changed is body else changed


def _with_items(value: Any, code: int) -> Any:
    """Returns the value with the error in each item below it. It is the same object if there is no such item."""
    changes = {}
    for each in fields(value):
        old = getattr(value, each.name)
        new = _within(old, code)
        if new is not old:
            changes[each.name] = new
    return replace(value, **changes) if changes else value


def _within(value: Any, code: int) -> Any:
    if isinstance(value, list | tuple):
        found: Iterable[Any] = [_item(each, code) for each in value]
        return type(value)(found) if any(new is not old for new, old in zip(found, value, strict=True)) else value
    return value


def _item(value: Any, code: int) -> Any:
    if not is_dataclass(value):
        return value
    value = _with_items(value, code)
    names = {each.name for each in fields(value)}
    if ERROR_CODE not in names:
        return value
    error = known_error(code) if isinstance(getattr(value, ERROR_CODE), ErrorCode) else code
    beside = {name: nothing for name, nothing in NOT_BESIDE_AN_ERROR.items() if name in names}
    return replace(value, **{ERROR_CODE: error}, **beside)
