"""What was sent and what came back, in words and bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

MOST_WORDS = 2_000
MOST_BYTES = 4_096
"""So many characters and bytes of one line are shown."""
SENT, RECEIVED, HAPPENED = ">", "<", "!"


@dataclass(frozen=True, slots=True)
class Line:
    """One message, or something else that happened on a connection. ``frame`` begins with the length. ``body`` is what
    an answer was decoded to, and ``connection`` counts the connections of a case from 1."""

    connection: int
    direction: str
    words: str
    frame: bytes = b""
    body: Any = None

    @property
    def hex(self) -> str:
        over = len(self.frame) - MOST_BYTES
        return self.frame[:MOST_BYTES].hex() + (f"... ({over} more bytes)" if over > 0 else "")


def in_words(value: object) -> str:
    """A value in one short line: ``{error_code: NONE, topics: [{...}]}``."""
    text = _words_of(value)
    over = len(text) - MOST_WORDS
    return text if over <= 0 else f"{text[:MOST_WORDS]}... ({over} more characters)"


def _words_of(value: object) -> str:
    if isinstance(value, Enum):
        return value.name.upper()
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes" if len(value) > 32 else bytes(value).hex() or "no bytes"
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{each.name}: {_words_of(getattr(value, each.name))}" for each in fields(value))
        return f"{{{inside}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_words_of(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(_words_of, value))}]"
    if isinstance(value, timedelta):
        return f"{value / timedelta(milliseconds=1):g} ms"
    if isinstance(value, str):
        return repr(value)
    return "null" if value is None else str(value)


def flattened(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Each field of an answer with its path (``topics[0].error_code``), down to plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from flattened(getattr(value, each.name), f"{path}.{each.name}" if path else each.name)
    elif isinstance(value, list | tuple):
        yield f"{path}.count", len(value)
        for index, each in enumerate(value):
            yield from flattened(each, f"{path}[{index}]")
    elif isinstance(value, memoryview):
        yield path, bytes(value)
    else:
        assert value is None or isinstance(value, int | float | str | bytes | Enum | UUID | datetime | timedelta), path
        yield path, value
