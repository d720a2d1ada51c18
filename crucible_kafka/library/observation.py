"""A test's view of a cluster: frames, records, offsets, transactions and sessions, as plain values."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

SHOWN_CHARACTERS: Final = 400
"""The limit of a body in the text of a frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One request or response, decoded. Its text is one line of the conversation."""

    at_s: float
    """Unix time."""
    direction: str
    """``request`` or ``response``."""
    node: int
    connection: int
    """A number that the node never uses twice."""
    peer: str
    """HOST:PORT at the other end."""
    client_id: str
    api: str
    """As Kafka's schemas spell it, such as ``OffsetCommit``."""
    version: int
    correlation_id: int
    body: Any
    """The fields of the newest version, as dictionaries, lists, numbers and strings. Records are counted only."""
    fault: str = ""
    """The action of a rule on it, or an empty string."""

    @property
    def is_request(self) -> bool:
        return self.direction == "request"

    @property
    def error(self) -> str:
        """The top-level error of a response, such as ``NOT_COORDINATOR``; ``NONE`` if it has none."""
        return str((self.body or {}).get("error_code", "NONE"))

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.at_s)) + f".{int(self.at_s * 1000) % 1000:03}"
        arrow = "->" if self.is_request else "<-"
        shown = _shown(self.body)
        if len(shown) > SHOWN_CHARACTERS:
            shown = f"{shown[:SHOWN_CHARACTERS]}... ({len(shown) - SHOWN_CHARACTERS} more characters)"
        fault = f"  [{self.fault}]" if self.fault else ""
        who = self.client_id or "(no client ID)"
        return f"{clock} {who} {arrow} node {self.node} #{self.connection} {self.api} v{self.version} {shown}{fault}"


def _shown(value: Any) -> str:
    """Return a body without the fields that are empty."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(each)}" for key, each in value.items() if _says(each)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value) if isinstance(value, str) and not value.isupper() else str(value)


def _says(value: Any) -> bool:
    return value is not None and value not in ("", [], {}, "NONE")


def error_lines(log_lines: Iterable[str], since_s: float) -> Iterator[str]:
    """Yield the errors and warnings since a time, and what a node wrote that is no line of its log: a traceback."""
    for text in log_lines:
        try:
            line = json.loads(text)
            at_s = datetime.fromisoformat(line["at"]).timestamp()
        except (ValueError, KeyError, TypeError):
            yield f"  {text}"
            continue
        if line.get("level") not in ("error", "warn") or at_s < since_s:
            continue
        facts = {key: value for key, value in line.items() if key not in ("at", "level", "node", "event")}
        words = ", ".join(f"{key}: {value}" for key, value in facts.items())
        yield f"  {line['at'][11:23]} node {line.get('node')} {line['level']} {line.get('event')} {words}".rstrip()


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record in the log of a partition, committed or not."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    committed: bool = True
    """Whether a consumer with read_committed gets it: it is below the last stable offset, and not of an aborted
    transaction."""
    producer_id: int = -1
    producer_epoch: int = -1
    is_transactional: bool = False
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group, as its coordinator has it."""

    group_id: str
    state: str
    """Kafka's name, such as ``Stable``."""
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[str, ...] = ()
    """Member IDs, in the order in which they joined."""
    client_ids: tuple[str, ...] = ()
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Committed offsets by topic and partition."""
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transactional ID, as its coordinator has it."""

    transactional_id: str
    state: str
    """Kafka's name, such as ``Ongoing``."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[str, int], ...] = ()
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class SessionView:
    """An incremental fetch session (KIP-227)."""

    session_id: int
    node: int
    client_id: str
    next_epoch: int
    """The epoch that the client's next Fetch must have."""
    partitions: int
    """The number of partitions in it."""
