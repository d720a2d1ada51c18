"""One record, as the builder takes it and the reader gives it."""

from dataclasses import dataclass
from typing import TypeAlias

HeaderPair: TypeAlias = tuple[str, bytes | None]


@dataclass(slots=True, frozen=True)
class Record:
    """``offset`` is -1 while it is not known, because the builder numbers records. ``timestamp_ms`` -1 means none."""

    offset: int = -1
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[HeaderPair, ...] = ()
