"""One record, as the builder takes it and the reader gives it."""

from dataclasses import dataclass
from typing import TypeAlias

HeaderPair: TypeAlias = tuple[str, bytes | None]


@dataclass(slots=True, frozen=True)
class Record:
    """``offset`` is -1 before the builder has numbered the record. ``timestamp_ms`` is -1 if it has no timestamp."""

    offset: int = -1
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[HeaderPair, ...] = ()
