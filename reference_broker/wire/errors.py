"""Error codes by Kafka's names, and the protocol's exception.

``ErrorCode`` is kio's table of Kafka 4.1's codes. Codes from 10001 on are private to drafts.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from kio.schema.errors import ErrorCode as ErrorCode


class DraftError(IntEnum):
    """An error code that only private drafts carry (int16 on the wire)."""

    INVALID_FETCH_SESSION = 10001
    INCREMENTAL_FETCH_DENIED = 10002
    INVALID_METADATA_EPOCH = 10003


Error: TypeAlias = ErrorCode | DraftError
"""Any error code that a response of ours may carry."""


def known_error(code: int) -> Error:
    """Return the error with this code. It is UNKNOWN_SERVER_ERROR for a code that no error has, as in Kafka
    (Errors.forCode): the other side may be newer, or its response was damaged on its way."""
    return _BY_CODE.get(code, ErrorCode.unknown_server_error)


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or ``ERROR_n`` for a number that is no code. It never fails."""
    error = _BY_CODE.get(code)
    return f"ERROR_{int(code)}" if error is None else error.name.upper()


_BY_CODE: Mapping[int, Error] = {int(error): error for error in (*ErrorCode, *DraftError)}


MAX_MESSAGE_CHARACTERS = 1000
"""A message may repeat what a request said, and a text of a version that is not flexible holds 32,767 bytes."""


def bounded_message(text: str) -> str:
    """An error message of at most about MAX_MESSAGE_CHARACTERS. What is cut off is counted."""
    over = len(text) - MAX_MESSAGE_CHARACTERS
    return text if over <= 0 else f"{text[:MAX_MESSAGE_CHARACTERS]}... ({over} more characters)"


class ProtocolError(Exception):
    """The peer sent something that the protocol forbids. Its connection is closed, and one line is logged."""


class TruncatedError(ProtocolError):
    """A field reaches beyond the end of its frame."""

    def __init__(self, what: str, needed_bytes: int, remaining_bytes: int) -> None:
        super().__init__(f"{what} needs {needed_bytes} bytes, but only {remaining_bytes} remain")
