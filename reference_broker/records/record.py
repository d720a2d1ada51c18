"""One record, as the builder takes it and the reader gives it."""

from dataclasses import dataclass
from typing import TypeAlias

HeaderPair: TypeAlias = tuple[str, bytes | None]


@dataclass(slots=True, frozen=True)
class Record:
    """``offset`` -1: not known yet (the builder numbers records itself). ``timestamp_ms`` -1: none."""

    offset: int = -1
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[HeaderPair, ...] = ()
