"""Judges sent and read records by values that prove themselves.

A value has its writer, its number and a checksum, so that a lost, repeated, damaged, foreign or misplaced one can be
named. Values of a test's own can be judged too, except that a damaged one counts as one that nobody sent.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import uuid4

from crc32c import crc32c

from crucible_kafka.library.arguments import checked, checked_call
from crucible_kafka.library.errors import DeliveryViolated

Guarantee: TypeAlias = Literal["exactly-once", "at-least-once", "in-order"]
MARK: Final = b"crucible"
FIELDS: Final = 5
"""Mark, writer, number, checksum and padding, with colons between them."""


@checked_call
def values(count: int, writer: str | None = None, first: int = 0, size_bytes: int = 0) -> list[bytes]:
    """Return ``count`` values of one writer, numbered from ``first`` on, each of at least ``size_bytes``.

    Without ``writer`` it has a random name, so that no other call makes the same values.

    >>> for value in kafka.values(100):
    ...     producer.send("orders", value)
    """
    if count < 0:
        raise ValueError(f"count is {count}: give at least 0.")
    name = uuid4().hex[:8] if writer is None else writer
    if not name or ":" in name:
        raise ValueError(f"writer is {name!r}: give a name without a colon.")
    return [_value(name, number, size_bytes) for number in range(first, first + count)]


def _value(writer: str, number: int, size_bytes: int) -> bytes:
    least = len(MARK) + len(writer.encode()) + len(str(number)) + len("00000000") + FIELDS - 1
    padding = b"." * max(0, size_bytes - least)
    checksum = _checksum(writer.encode(), str(number).encode(), padding)
    return b":".join((MARK, writer.encode(), str(number).encode(), b"%08x" % checksum, padding))


def _checksum(writer: bytes, number: bytes, padding: bytes) -> int:
    return int(crc32c(b":".join((writer, number, padding))))


@dataclass(slots=True)
class _Sent:
    value: bytes
    acknowledged: bool | None = None
    """None while nobody knows."""


@checked()
class Sent:
    """The values of one writer, and which of them were acknowledged.

    >>> sent = kafka.sent()
    >>> for _ in range(100):
    ...     value = sent.next()
    ...     producer.produce("orders", value, on_delivery=sent.delivered)
    >>> kafka.assert_delivered(sent, read, "exactly-once")
    """

    def __init__(self, writer: str | None = None, size_bytes: int = 0) -> None:
        self.writer = uuid4().hex[:8] if writer is None else writer
        self._size_bytes = size_bytes
        self._sent: dict[bytes, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sent)

    def next(self) -> bytes:
        """Return the next value. Until it is known to be acknowledged, it may be read or not."""
        (value,) = values(1, self.writer, len(self._sent), self._size_bytes)
        self._sent[value] = _Sent(value)
        return value

    @property
    def has_outcome(self) -> bool:
        """Whether of any value it is known how sending it ended."""
        return any(sent.acknowledged is not None for sent in self._sent.values())

    def acknowledged(self, value: bytes) -> None:
        """Note that the cluster has acknowledged a value, so that it must be read."""
        self._of(value).acknowledged = True

    def failed(self, value: bytes) -> None:
        """Note that sending failed. The value may be in the log all the same."""
        self._of(value).acknowledged = False

    def _of(self, value: bytes) -> _Sent:
        found = self._sent.get(value)
        if found is None:
            raise ValueError(f"{value!r} is no value of this writer: give what next() returned.")
        return found

    def delivered(self, error: object, message: Any) -> None:
        """Note the outcome, as confluent-kafka's ``on_delivery`` calls it."""
        (self.failed if error else self.acknowledged)(message.value())

    def must_be_read(self) -> list[bytes]:
        """Return the values that were acknowledged."""
        return [sent.value for sent in self._sent.values() if sent.acknowledged]


@dataclass(frozen=True, slots=True)
class Violation:
    """The first violation, in a sentence, and the value that it is about."""

    sentence: str
    value: bytes
    is_missing: bool = False


@checked_call
def assert_delivered(
    sent: "Sent | Iterable[bytes | str]",
    read: Iterable[object],
    guarantee: Guarantee = "exactly-once",
    explain: Callable[[Violation], str] = lambda _: "",
) -> None:
    """Raise DeliveryViolated, which is an AssertionError, with the first violation of the guarantee.

    ``sent`` are values that were all acknowledged, in the order in which they were sent, or a ``Sent``. ``read`` are
    values, or messages of kafka-python, aiokafka and confluent-kafka, or records of ``Cluster.records``.

    * ``at-least-once``: each acknowledged value was read, and nothing that was not sent.
    * ``exactly-once``: also nothing was read twice.
    * ``in-order``: as at-least-once, and the first reads of a writer's values come in the order of sending. Where reads
      have a partition, it holds in each partition.
    """
    if guarantee not in get_args(Guarantee):
        raise ValueError(f"guarantee is {guarantee!r}: give one of {', '.join(get_args(Guarantee))}.")
    if isinstance(sent, Sent) and len(sent) and not sent.has_outcome:
        raise ValueError(
            f"None of the {len(sent)} values is known to be acknowledged or not, so that each may be missing: call "
            "acknowledged(value) or failed(value), or pass delivered as on_delivery."
        )
    violation = first_violation(sent, [_read_of(each) for each in read], guarantee)
    if violation is not None:
        raise DeliveryViolated(f"Not {guarantee}: {violation.sentence}{explain(violation)}")


@dataclass(frozen=True, slots=True)
class Read:
    """A value that was read, and where, as far as the reader knows."""

    value: bytes
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @property
    def where(self) -> str:
        return "" if self.offset is None else f" at {self.topic}-{self.partition} offset {self.offset}"


def _read_of(item: object) -> Read:
    """Return a read of any client's message. A record without a value counts as an empty value."""
    if isinstance(item, bytes | bytearray | memoryview):
        return Read(bytes(item))
    if isinstance(item, str):
        return Read(item.encode())
    value, topic, partition, offset = (_field(item, name) for name in ("value", "topic", "partition", "offset"))
    if isinstance(value, str):
        value = value.encode()
    if not hasattr(item, "value") or not isinstance(value, bytes | None):
        raise TypeError(f"{item!r} was read, which is no value, message or record: give bytes.")
    return Read(value or b"", topic, partition, offset)


def _field(item: object, name: str) -> Any:
    found = getattr(item, name, None)
    return found() if callable(found) else found


def _value_of(sent: object) -> bytes:
    if isinstance(sent, str):
        return sent.encode()
    if not isinstance(sent, bytes | bytearray | memoryview):
        raise TypeError(f"{sent!r} was sent, which is no value: give bytes or a string.")
    return bytes(sent)


def first_violation(
    sent: "Sent | Iterable[bytes | str]", read: Sequence[Read], guarantee: Guarantee
) -> Violation | None:
    """Return the first violation by the order of reading, then the first value that is missing."""
    order = [_value_of(each) for each in sent]
    may_come = Counter(order)
    needed = Counter(sent.must_be_read() if isinstance(sent, Sent) else order)
    number_of: dict[bytes, int] = {}
    for number, value in enumerate(order):  # First reads follow the order of first sending.
        number_of.setdefault(value, number)
    seen: dict[bytes, list[Read]] = {}
    last: dict[tuple[str, str | None, int | None], Read] = {}
    for each in read:
        if each.value not in may_come:
            return Violation(_of_unknown(each, order), each.value)
        before = seen.setdefault(each.value, [])
        before.append(each)
        if guarantee == "exactly-once" and len(before) > may_come[each.value]:
            first = before[0].where or " before"
            return Violation(
                f"{_name(each.value)} was read twice, first{first}, then{each.where or ' again'}.", each.value
            )
        if guarantee == "in-order" and len(before) == 1:
            key = (_writer(each.value), each.topic, each.partition)
            later = last.get(key)
            if later is not None and number_of[later.value] > number_of[each.value]:
                return Violation(
                    f"{_name(each.value)} was read{each.where} after {_name(later.value)}{later.where}, which was sent "
                    "later.",
                    each.value,
                )
            last[key] = each
    for value in order:
        missing = needed[value] - len(seen.get(value, ()))
        if missing > 0:
            return Violation(f"{_name(value)} was acknowledged and never read.", value, is_missing=True)
    return None


def _of_unknown(read: Read, sent: Sequence[bytes]) -> str:
    problem = damage_of(read.value)
    if problem:
        return f"what was read{read.where} is damaged: {problem}."
    shown = _name(read.value)
    return f"{shown} was read{read.where}, and is none of the {len(sent)} values that were sent."


def damage_of(value: bytes) -> str:
    """Return what is wrong with a value that begins as those of ``values``; empty if nothing is, or if it is another
    one."""
    if not value.startswith(MARK + b":"):
        return ""
    parts = value.split(b":", FIELDS - 1)
    if len(parts) != FIELDS:
        return f"it ends after {len(value)} bytes"
    _, writer, number, checksum, padding = parts
    expected = b"%08x" % _checksum(writer, number, padding)
    return (
        "" if checksum == expected else f"its checksum is {checksum.decode(errors='replace')}, not {expected.decode()}"
    )


def _writer(value: bytes) -> str:
    parts = value.split(b":", FIELDS - 1)
    return parts[1].decode(errors="replace") if parts[0] == MARK and len(parts) == FIELDS else ""


def _name(value: bytes) -> str:
    parts = value.split(b":", FIELDS - 1)
    if parts[0] == MARK and len(parts) == FIELDS:
        return f"value {parts[2].decode(errors='replace')} of writer {parts[1].decode(errors='replace')}"
    return f"the value {value[:60]!r}"
