"""Counts what the fetches of a run's fetchers cost: bytes on the wire, partitions, full fetches, records told twice.

Each request that a node was given counts, a doubled one twice, and each answer that it gave, a lost one too. The bytes
are those of the real codec. ``layout_bytes`` are those of the same messages in the layout of Fetch 12, which has names
for topics in each revision. So two revisions can be compared without what only their layouts add.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from chaos.checks.batches import batches_of
from chaos.checks.check import Check, Kind
from reference_broker.core.events import Effect, Event, Note, Reply, Request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchRequest, FetchResponse, FetchTopicResponse
from reference_broker.wire.messages import encode_request, encode_response
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from chaos.checks.check import CheckContext
    from chaos.checks.quorum_view import Member
    from reference_broker.core.node import Node

ONE_LAYOUT: Final = 12
FETCHERS: Final = "fetcher-"
"""How the client IDs of fetchers begin."""
_INT32: Final = 0x7FFFFFFF


@dataclass(slots=True)
class Counted:
    """Sums over a run, but ``cached``, which is the greatest number of partitions that all sessions cached at once.

    Bytes are without those of records. ``full_again`` counts full requests beyond each fetcher's first one. ``twice``
    counts records that a fetcher had been sent before. ``evicted`` sessions made room for others.
    """

    fetches: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    layout_bytes: int = 0
    named: int = 0
    told: int = 0
    full_again: int = 0
    twice: int = 0
    sessions: int = 0
    evicted: int = 0
    cached: int = 0


class FetchMeter(Check):
    """Judges nothing. ``counted`` is the result."""

    notes: ClassVar[tuple[str, ...]] = ("session_created", "session_evicted")
    acts_on: ClassVar[tuple[Kind, ...]] = (ApiKey.FETCH.value,)

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self.counted = Counted()
        self._began: set[str] = set()
        self._told_up_to: dict[tuple[str, str, int], int] = {}

    def note(self, at_us: int, member: "Member", note: Note) -> None:  # noqa: ARG002
        if note.what == "session_evicted":
            self.counted.evicted += 1
        else:
            self.counted.sessions += str(dict(note.fields)["client_id"]).startswith(FETCHERS)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        names = node.broker.partitions.topic_names
        if type(event) is Request and _counts(event.tag):
            self._asked(event, names)
        for effect in effects:
            if type(effect) is Reply and effect.body is not None and _counts(effect.tag):
                self._answered(effect, names)
        self.counted.cached = max(self.counted.cached, node.broker.fetch_sessions.partitions_cached)

    def _asked(self, event: Request, names: dict[bytes, str]) -> None:
        request = event.body
        assert isinstance(request, FetchRequest)
        counted, client = self.counted, event.client_id or ""
        counted.fetches += 1
        counted.request_bytes += _request_bytes(event.api_version, event, request)
        counted.layout_bytes += _request_bytes(ONE_LAYOUT, event, _request_by_name(request, names))
        counted.named += sum(len(topic.partitions) for topic in request.topics)
        if request.session_epoch <= 0:
            counted.full_again += client in self._began
            self._began.add(client)

    def _answered(self, reply: Reply, names: dict[bytes, str]) -> None:
        response = reply.body
        assert isinstance(response, FetchResponse)
        topics = [replace(each, topic=_name(each, names), topic_id=NO_TOPIC_ID) for each in response.responses]
        counted, records_bytes = self.counted, 0
        for topic in topics:
            counted.told += len(topic.partitions)
            for data in topic.partitions:
                records = bytes(data.records or b"")
                records_bytes += len(records)
                self._read(reply.tag.client_id, topic, data.partition, records)
        counted.response_bytes += _response_bytes(reply.api_version, reply, response) - records_bytes
        by_name = replace(response, session_id=response.session_id & _INT32, responses=topics)
        counted.layout_bytes += _response_bytes(ONE_LAYOUT, reply, by_name) - records_bytes

    def _read(self, client: str, topic: FetchTopicResponse, partition: int, records: bytes) -> None:
        place = client, topic.topic, partition
        for batch, _ in batches_of(records):
            told, end = self._told_up_to.get(place, 0), batch.last_offset + 1
            self.counted.twice += max(0, min(told, end) - batch.base_offset)
            self._told_up_to[place] = max(told, end)


def _counts(tag: Tag) -> bool:
    """Whether it is a fetcher's fetch. The request that only closes its session is none."""
    closes = tag.session_id != 0 and tag.session_epoch < 0
    return tag.api_key == ApiKey.FETCH and tag.client_id.startswith(FETCHERS) and not closes


def _name(topic: Any, names: dict[bytes, str]) -> str:
    return topic.topic or names.get(topic.topic_id, "")


def _request_by_name(request: FetchRequest, names: dict[bytes, str]) -> FetchRequest:
    def by_name(topics: Sequence[Any]) -> list[Any]:
        return [replace(each, topic=_name(each, names), topic_id=NO_TOPIC_ID) for each in topics]

    named, forgotten = by_name(request.topics), by_name(request.forgotten)
    return replace(request, session_id=request.session_id & _INT32, topics=named, forgotten=forgotten)


def _request_bytes(version: int, event: Request, request: FetchRequest) -> int:
    parts = encode_request(event.api_key, version, event.correlation_id, event.client_id, request)
    return sum(len(part) for part in parts)


def _response_bytes(version: int, reply: Reply, response: FetchResponse) -> int:
    return sum(len(part) for part in encode_response(reply.api_key, version, reply.correlation_id, response))
