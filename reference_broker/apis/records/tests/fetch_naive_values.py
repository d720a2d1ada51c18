"""The state that the model of fetches keeps, and how responses are compared."""

from dataclasses import dataclass, field
from typing import Any

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchRequest, FetchResponse

Key = tuple[str | bytes, int]
MIN_MS = 120_000
FIRST_MIN_MS = 60_000


@dataclass(eq=False)
class Part:
    key: Key
    name: str
    offset: int = 0
    max_bytes: int = 0
    leader_epoch: int = -1
    last_epoch: int = -1
    sent_watermark: int = -1
    sent_log_start: int = -1
    sent_error: int = 0
    sent_divergence: tuple[int, int] | None = None
    named: bool = False
    dirty: int = 0


@dataclass(eq=False)
class Session:
    by_id: bool
    follower: bool
    number: int = 0
    epoch: int = 1
    created_ms: int = 0
    used_ms: int = 0
    parts: list[Part] = field(default_factory=list)
    min_ms: int = MIN_MS


@dataclass
class State:
    error: int
    watermark: int = -1
    stable: int = -1
    log_start: int = -1
    divergence: tuple[int, int] | None = None
    available: int = 0
    there: int = 0
    end: int = 0


@dataclass(eq=False)
class Waiting:
    call: FakeCall
    request: FetchRequest
    session: Session
    deadline_us: int


@dataclass(eq=False)
class FirstSession(Session):
    """Parts are in the order of the full request until its response, and then by name and index."""

    number: int = 0
    responded: bool = False
    full: bool = True
    reader: tuple[bool, bool] = (False, False)
    last_sent: list[Part] = field(default_factory=list)
    min_ms: int = FIRST_MIN_MS

    @property
    def upcoming(self) -> int:
        return self.number + 1 if self.responded else self.number

    def owes(self, part: Part) -> bool:
        """Return whether the response to the last request has to include the part, if there is room."""
        return self.full or part.dirty >= self.number or part in self.last_sent

    def ring(self) -> list[Part]:
        if self.full or not self.parts:
            return list(self.parts)
        start = self.number % len(self.parts)
        return self.parts[start:] + self.parts[:start]


def is_urgent(part: Part, state: State) -> bool:
    """Kafka: an error or divergence ends a wait. Unlike Kafka (card of Fetch), one that lasts does not."""
    failing = bool(state.error or state.divergence)
    return failing and (part.named or (state.error, state.divergence) != (part.sent_error, part.sent_divergence))


def expect_error(call: FakeCall, error: int) -> None:
    assert normal(call.response) == (error, 0, [])


Line = tuple[Any, ...]


def line(session: Session, part: Part, state: State, records: bytes) -> Line:
    topic = ("", part.key[0]) if session.by_id else (part.key[0], NO_TOPIC_ID)
    numbers = (state.error, state.watermark, state.stable, state.log_start)
    return (*topic, part.key[1], *numbers, state.divergence, records)


def normal(response: FetchResponse) -> tuple[int, int, list[Line]]:
    lines = []
    for topic in response.responses:
        for partition in topic.partitions:
            ended = partition.diverging_epoch
            divergence = None if ended is None else (ended.epoch, ended.end_offset)
            numbers = (
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            lines.append((topic.topic, topic.topic_id, partition.partition, *numbers, divergence, partition.records))
    return response.error_code, response.session_id, lines
