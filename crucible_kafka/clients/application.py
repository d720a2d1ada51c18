"""The application of a case: its producers, consumers and admin clients, each behind an adapter.

Every operation has a limit that comes from the client's own settings. One that does not return in time is a violation
of progress, since the control case ``ordinary/write-and-read`` shows that the adapter works.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from crucible_kafka.clients import protocol
from crucible_kafka.clients.adapter import AdapterProcess, ReplyMissing
from crucible_kafka.clients.case import Violated
from crucible_kafka.clients.protocol import Failure, PartitionOffset, Setting

if TYPE_CHECKING:
    from crucible_kafka.library import Frame, Rule

SLACK_S: Final = 6.0
"""Added to each bound that comes from settings: a loaded machine is slow. It costs time in red cases only."""
POLL_MS: Final = 150
SHOWN_CHARACTERS: Final = 60
"""The part of a value that the conversation shows."""
COMMON: Final[dict[str, Setting]] = {"request_timeout_ms": 3000, "retry_backoff_ms": 100, "reconnect_backoff_ms": 50}
OF_CONSUMER: Final[dict[str, Setting]] = {
    "reset": "earliest",
    "auto_commit": False,
    "fetch_max_wait_ms": 200,
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 30_000,
}
OF_PRODUCER: Final[dict[str, Setting]] = {
    "acks": "all",
    "linger_ms": 0,
    "delivery_timeout_ms": 10_000,
}
"""With ``COMMON`` and ``OF_CONSUMER``: the settings that a case's clients have unless it gives others. Times are short,
so that waiting cases are, too."""


class CaseContext(Protocol):
    """The part of a case that its clients use."""

    def note(self, line: str) -> None:
        """Add a line to the conversation."""

    def remaining_s(self) -> float:
        """Return the time that the case has left, in seconds."""

    def drain(self) -> None:
        """Deliver the events that have come to their clients."""

    def frames(self, client_id: str) -> "list[Frame]":
        """Return the frames of one client at all clusters of the case, by time."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request of a client, and its response if one was made. A response that a rule dropped is there, too."""

    request: "Frame"
    response: "Frame | None"

    @property
    def body(self) -> dict[str, Any]:
        """The request's fields."""
        return dict(self.request.body or {})


@dataclass(frozen=True, slots=True)
class ClientError:
    """An error that the application received."""

    operation: str
    failure: Failure

    def __str__(self) -> str:
        words = [
            word for word, holds in (("retriable", self.failure.retriable), ("fatal", self.failure.fatal)) if holds
        ]
        return f"{self.operation}: {self.failure.name}{f' ({chr(44).join(words)})' if words else ''}"


class Client:
    """One client of the case. Failed operations are added to ``errors``; the application continues, as most
    applications would."""

    ROLE = ""
    DEFAULTS: ClassVar[dict[str, Setting]] = {}

    def __init__(self, at: CaseContext, process: AdapterProcess, name: str, settings: dict[str, Setting]) -> None:
        self._at = at
        self.process = process
        self.name = name
        """The name in the protocol, and the client ID."""
        self.settings = {**COMMON, **self.DEFAULTS, **settings}
        self.errors: list[ClientError] = []
        """Errors that the application received, in order."""
        self.ignored: list[str] = []
        """Settings that this client does not have."""
        self.is_closed = False

    def open(self, bootstrap: str) -> bool:
        """Let the adapter make the client. Return whether it could; the error is in ``errors``."""
        settings = self.settings
        reply = self._call(
            protocol.Open,
            role=self.ROLE,
            bootstrap=bootstrap,
            client_id=self.name,
            settings=settings,
            details=bootstrap,
        )
        self.ignored = list(reply.result.get("ignored", []))
        return reply.error is None

    # Bounds

    def bound_s(self, timeouts: float = 1, also_ms: float = 0) -> float:
        """Return the time that a client with these settings needs at most, in seconds: request timeouts with
        their backoffs, and ``also_ms``."""
        attempt_ms = int(self.settings["request_timeout_ms"]) + 2 * int(self.settings["retry_backoff_ms"])
        return (timeouts * attempt_ms + also_ms) / 1000 + SLACK_S

    # Frames

    def exchanges(self, api: str, after: "Rule | float" = 0.0) -> list[Exchange]:
        """Return this client's requests of an API with their responses, by time. ``after`` is a Unix time, or a rule:
        then only requests that came after it last fired."""
        since_s = after if isinstance(after, int | float) else max((hit.at_s for hit in after.hits), default=0.0)
        frames = [frame for frame in self._at.frames(self.name) if frame.api == api]
        responses = {
            (frame.node, frame.connection, frame.correlation_id): frame for frame in frames if not frame.is_request
        }
        return [
            Exchange(frame, responses.get((frame.node, frame.connection, frame.correlation_id)))
            for frame in frames
            if frame.is_request and frame.at_s > since_s
        ]

    # Operations

    @property
    def fatal(self) -> ClientError | None:
        """The first error after which this client is of no more use."""
        return next((error for error in self.errors if error.failure.fatal), None)

    def close(self) -> None:
        """Close the client, as at the end of an application."""
        if not self.is_closed:
            self.is_closed = True
            self._call(protocol.Close)

    def kill(self) -> None:
        """End the adapter's process at once, as the end of the machine would. It ends all clients in it."""
        self._at.note(f"{self.name}: the process is killed")
        self.is_closed = True
        self.process.kill()

    def _call(self, kind: Any, limit_s: float | None = None, details: str = "", **fields: Any) -> protocol.Reply:
        """Send a request and return the reply. Raise Violated if none comes in time."""
        op = kind.__struct_config__.tag
        limit_s = self.bound_s(3) if limit_s is None else limit_s
        began = time.monotonic()
        request = kind(id=self.process.next_id(), client=self.name, **fields)
        if op != "poll":
            self._at.note(f"{self.name}: {op} {details}".rstrip())
        try:
            reply = self.process.call(request, min(limit_s, max(0.1, self._at.remaining_s())))
        except ReplyMissing:
            self._at.drain()
            raise Violated(
                "progress",
                f"{op} of {self.name} has not returned within {limit_s:g} s: the client hangs, or its adapter",
            ) from None
        self._at.drain()
        if reply.error is not None:
            self.errors.append(ClientError(op, reply.error))
            took = time.monotonic() - began
            self._at.note(f"{self.name}: {op} failed after {took:.2f} s: {reply.error.name} {reply.error.message}")
        return reply

    def receive(self, event: protocol.AnyEvent) -> None:
        """Take an event of this client."""
        if isinstance(event, protocol.Failed):
            self.errors.append(ClientError("record" if event.record is not None else "client", event.error))
            self._at.note(f"{self.name}: failed: {event.error.name} {event.error.message}")
        elif isinstance(event, protocol.CommitCompleted) and event.error is not None:
            self.errors.append(ClientError("commit", event.error))


class Consumer(Client):
    """A consumer. ``poll`` and ``read`` let it work."""

    ROLE = "consumer"
    DEFAULTS: ClassVar = OF_CONSUMER

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.records: list[protocol.Record] = []
        """Records that the application has received, in order."""
        self.assigned: list[tuple[str, int]] = []
        """The current partitions of a member, according to its events."""
        self.changes: list[tuple[str, list[tuple[str, int]]]] = []
        """Its events assigned, revoked and lost, in order."""

    @property
    def values(self) -> list[str | None]:
        return [record.value for record in self.records]

    def assign(self, topic: str, *partitions: int, offset: int | None = None) -> None:
        """Read these partitions (default: the first one) from an offset, or from where the reset policy says."""
        positions = [
            PartitionOffset(topic=topic, partition=partition, offset=offset) for partition in partitions or (0,)
        ]
        self._call(protocol.Assign, partitions=positions, details=", ".join(map(_position_text, positions)))

    def subscribe(self, *topics: str) -> None:
        self._call(protocol.Subscribe, topics=list(topics), details=", ".join(topics))

    def seek(self, topic: str, offset: int, partition: int = 0) -> None:
        position = PartitionOffset(topic=topic, partition=partition, offset=offset)
        self._call(protocol.Seek, partition=position, details=_position_text(position))

    def pause(self, topic: str, *partitions: int) -> None:
        self._call(
            protocol.Pause,
            partitions=[PartitionOffset(topic=topic, partition=partition) for partition in partitions or (0,)],
        )

    def resume(self, topic: str, *partitions: int) -> None:
        self._call(
            protocol.Resume,
            partitions=[PartitionOffset(topic=topic, partition=partition) for partition in partitions or (0,)],
        )

    def poll(self, timeout_ms: int = POLL_MS) -> list[protocol.Record]:
        """Poll once, and return the records that came."""
        before = len(self.records)
        self._call(protocol.Poll, self.bound_s(3, also_ms=timeout_ms), timeout_ms=timeout_ms)
        return self.records[before:]

    def read(self, count: int, within_s: float | None = None) -> list[protocol.Record]:
        """Poll until ``count`` more records have come, the client fails for good, or the time is over (default: three
        request timeouts). Return what came."""
        before = len(self.records)
        self.poll_until(lambda: len(self.records) - before >= count, within_s)
        return self.records[before:]

    def poll_until(self, is_done: Callable[[], object], within_s: float | None = None) -> bool:
        """Poll until a condition holds, and return whether it does."""
        deadline = time.monotonic() + (self.bound_s(3) if within_s is None else within_s)
        while not is_done():
            if time.monotonic() >= deadline or self.fatal is not None or self._at.remaining_s() <= 0:
                return bool(is_done())
            began, errors = time.monotonic(), len(self.errors)
            self.poll()
            if len(self.errors) > errors and time.monotonic() - began < 0.05:
                time.sleep(0.05)  # An application that polls again at once after an error would be the busy loop.
        return True

    def commit(self, *offsets: PartitionOffset) -> bool:
        """Commit these offsets, or what was read so far. Return whether the client says that they are committed."""
        details = ", ".join(map(_position_text, offsets))
        return self._call(protocol.Commit, offsets=list(offsets) or None, details=details).error is None

    def committed(self, topic: str, partition: int = 0) -> int | None:
        """Return the committed offset as the client sees it, None if there is none."""
        return self._position_of(protocol.Committed, topic, partition)

    def position(self, topic: str, partition: int = 0) -> int | None:
        """Return the next offset to read, None if the client does not say."""
        return self._position_of(protocol.Position, topic, partition)

    def _position_of(self, kind: Any, topic: str, partition: int) -> int | None:
        reply = self._call(kind, partitions=[PartitionOffset(topic=topic, partition=partition)])
        positions = reply.result.get("partitions", [])
        return next((position.get("offset") for position in positions if position.get("partition") == partition), None)

    def receive(self, event: protocol.AnyEvent) -> None:
        super().receive(event)
        if isinstance(event, protocol.Record):
            self.records.append(event)
            self._at.note(f"{self.name}: record {event.topic}-{event.partition}@{event.offset} {_short(event.value)}")
        elif isinstance(event, protocol.Assigned | protocol.Revoked | protocol.Lost):
            kind = type(event).__name__.lower()
            partitions = [(partition.topic, partition.partition) for partition in event.partitions]
            self.changes.append((kind, partitions))
            if kind == "assigned":
                self.assigned += [partition for partition in partitions if partition not in self.assigned]
            else:
                self.assigned = [each for each in self.assigned if each not in partitions]
            self._at.note(f"{self.name}: {kind} {', '.join(f'{topic}-{index}' for topic, index in partitions)}")


@dataclass(slots=True)
class SentRecord:
    """A record that the application has sent, and its outcome."""

    number: int
    topic: str
    partition: int | None
    value: str | None
    acknowledged: protocol.Acknowledged | None = None
    failure: Failure | None = None

    @property
    def is_settled(self) -> bool:
        return self.acknowledged is not None or self.failure is not None


class Producer(Client):
    """A producer. With ``transactional_id`` in its settings it is initialised when it is made."""

    ROLE = "producer"
    DEFAULTS: ClassVar = OF_PRODUCER

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: list[SentRecord] = []
        """Records that it has sent, in order."""

    def send(
        self, topic: str, *values: str | None, partition: int | None = 0, key: str | None = None
    ) -> list[SentRecord]:
        """Send records, and return them at once."""
        records = []
        for value in values:
            record = SentRecord(len(self.sent), topic, partition, value)
            self.sent.append(record)
            records.append(record)
            reply = self._call(
                protocol.Send,
                record=record.number,
                topic=topic,
                partition=partition,
                key=key,
                value=value,
                details=f"{topic}-{partition} {_short(value)}",
            )
            record.failure = record.failure or reply.error
        return records

    def flush(self, within_s: float | None = None) -> bool:
        """Wait until every record has its outcome, at most for the delivery timeout. Return whether each has one."""
        limit_ms = int(self.settings["delivery_timeout_ms"]) if within_s is None else int(within_s * 1000)
        self._call(protocol.Flush, self.bound_s(2, also_ms=limit_ms), timeout_ms=limit_ms + 1000)
        deadline = time.monotonic() + 1.0
        while not self.is_settled and time.monotonic() < deadline:
            time.sleep(0.01)
            self._at.drain()
        return self.is_settled

    @property
    def is_settled(self) -> bool:
        return all(record.is_settled for record in self.sent)

    @property
    def acknowledged(self) -> list[str | None]:
        """The values that were acknowledged, in the order of record."""
        return [record.value for record in self.sent if record.acknowledged is not None]

    def begin(self) -> bool:
        return self._call(protocol.Begin).error is None

    def send_offsets(self, consumer: Consumer, *offsets: PartitionOffset) -> bool:
        """Make offsets part of the transaction. The consumer must be in the same process (``beside``)."""
        return self._call(protocol.SendOffsets, consumer=consumer.name, offsets=list(offsets)).error is None

    def commit_transaction(self, within_s: float | None = None) -> bool:
        """Commit, and return whether the client says that it is committed."""
        return self._call(protocol.CommitTransaction, within_s).error is None

    def abort_transaction(self, within_s: float | None = None) -> bool:
        return self._call(protocol.AbortTransaction, within_s).error is None

    def receive(self, event: protocol.AnyEvent) -> None:
        super().receive(event)
        number = getattr(event, "record", None)
        if isinstance(event, protocol.Acknowledged | protocol.Failed) and number is not None:
            record = self.sent[number] if 0 <= number < len(self.sent) else None
            if record is None:
                return
            if isinstance(event, protocol.Acknowledged):
                record.acknowledged = event
                place = f"{record.topic}-{event.partition}@{event.offset}"
                self._at.note(f"{self.name}: acknowledged {place} {_short(record.value)}")
            else:
                record.failure = event.error


class Admin(Client):
    """An admin client."""

    ROLE = "admin"

    def create_topic(self, topic: str, partitions: int = 1) -> bool:
        return self._call(protocol.CreateTopic, topic=topic, partitions=partitions, details=topic).error is None


def _short(value: str | None) -> str:
    """Return a value as the conversation shows it: a long one without its end."""
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"


def _position_text(position: PartitionOffset) -> str:
    return f"{position.topic}-{position.partition}" + (f"@{position.offset}" if position.offset is not None else "")


__all__ = ["Admin", "Client", "ClientError", "Consumer", "Exchange", "Producer", "SentRecord"]
