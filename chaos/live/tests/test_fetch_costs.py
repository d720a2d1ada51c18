"""The cost of a fetch: its own decoding, handling and encoding, and a share of the event that completes it."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from chaos.live.node_side.fetch_costs import FetchCosts, measure_waiting
from chaos.live.run_folder import RunFolder, TraceSpool, costs_beside
from reference_broker.apis.records.fetch import Fetch
from reference_broker.core.events import Closed, Effect, Event, Reply, Request, TimerFired
from reference_broker.ports.node_ports import Now
from reference_broker.quorum.values import METADATA_TOPIC_ID
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.messages import encode_response
from reference_broker.wire.tags import Tag
from reports.rows import FetchCost
from reports.schema import FETCH_COSTS

NOW = Now(0, 0)
Do = Callable[[], None]


class MeasuredDriver:
    """A clock that is moved by hand, and a driver that does what ``serve.driver`` does around a node."""

    def __init__(self) -> None:
        self.rows: list[FetchCost] = []
        self.cpu_us = 0
        self.costs = FetchCosts(2, self.rows.append, lambda: 77, lambda: self.cpu_us * 1000)

    def takes(self, us: int) -> None:
        self.cpu_us += us

    def request(
        self, event: Request, effects: Sequence[Effect], handle_us: int = 100, within: Sequence[Do] = ()
    ) -> None:
        self.takes(1_000_000)  # Of somebody else.
        self.costs.decoding()
        self.takes(10)
        self.event(event, effects, handle_us, within)

    def event(self, event: Event, effects: Sequence[Effect], handle_us: int, within: Sequence[Do] = ()) -> None:
        self.costs.outer.before(NOW, event)
        self.takes(5000)  # Other hooks.
        self.costs.inner.before(NOW, event)
        self.takes(handle_us)
        for do in within:
            do()
        assert self.costs.outer.after(NOW, event, effects) == effects
        self.takes(5000)
        assert self.costs.inner.after(NOW, event, effects) == effects

    def send(self, reply: Reply, size: int = 500, encode_us: int = 3) -> None:
        self.takes(encode_us)
        self.costs.sent(reply, size)


def fetch(connection: int, session: tuple[int, int] = (9, 4), version: int = 17, named: int = 2) -> Request:
    partitions = [FetchPartition(each, 0, 1000) for each in range(named)]
    topics = [FetchTopic("hot", NO_TOPIC_ID, partitions)] if named else []
    body = FetchRequest(session_id=session[0], session_epoch=session[1], topics=topics)
    client = f"fetcher-{connection}"
    return Request(connection, 1, 1, version, client, body, Tag(1, version, client), 60)


def response(connection: int, records: Sequence[bytes] = (b"x" * 70, b"")) -> Reply:
    partitions = [PartitionData(each, 0, 5, records=part) for each, part in enumerate(records)]
    body = FetchResponse(0, 9, [FetchTopicResponse("", b"\1" * 16, partitions)])
    return Reply(connection, 1, 1, 17, body, Tag(1, 17, ""))


def test_immediate_fetch_is_charged_its_own_work_without_hooks() -> None:
    world = MeasuredDriver()
    world.request(fetch(1), [response(1)])
    world.send(response(1))
    assert world.rows == [FetchCost(77, 2, "fetcher-1", "final", False, 60, 500, 2, 2, 70, 10 + 100 + 3)]


def test_fetch_that_waits_is_charged_what_is_done_for_it_and_nothing_else_of_others_events() -> None:
    world = MeasuredDriver()
    world.request(fetch(1, named=0), [])
    world.request(fetch(2, named=0), [])

    def marked(connection: int, us: int) -> Callable[[], None]:
        return lambda: world.costs.waiting(connection, lambda: world.takes(us))

    produced = Reply(3, 1, 0, 9, None, Tag(0, 9, ""))
    produce = Request(3, 1, 0, 9, "producer", None, Tag(0, 9, ""))
    world.event(produce, [response(1), response(2), produced], 300, (marked(1, 20), marked(2, 30)))
    world.send(response(1), encode_us=1)
    world.send(response(2), encode_us=2)
    world.request(fetch(4), [response(4)], 100, (marked(1, 50),))
    world.send(response(4))
    assert [(row.client_id, row.service_us) for row in world.rows] == [
        ("fetcher-1", 10 + 100 + 20 + 1),
        ("fetcher-2", 10 + 100 + 30 + 2),
        ("fetcher-4", 10 + 100 + 3),
    ]


def test_nested_work_of_fetch_is_counted_once() -> None:
    world = MeasuredDriver()
    world.request(fetch(1, named=0), [])
    inner = partial(world.costs.waiting, 1, lambda: world.takes(7))
    world.event(TimerFired(1), [response(1)], 0, (partial(world.costs.waiting, 1, inner),))
    world.send(response(1))
    assert [row.service_us for row in world.rows] == [10 + 100 + 7 + 3]


def test_broker_s_waiting_fetches_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MeasuredDriver()
    seen: list[int] = []
    for name in ("respond", "partition_marked"):
        monkeypatch.setattr(Fetch, name, getattr(Fetch, name))  # Put back at the end.
    measure_waiting(world.costs)
    world.costs.waiting = lambda connection, _: seen.append(connection)  # type: ignore
    fake = SimpleNamespace(call=SimpleNamespace(connection=5))
    Fetch.respond(fake)  # type: ignore[arg-type]
    Fetch.partition_marked(fake, None)  # type: ignore[arg-type]
    assert seen == [5, 5]


def test_session_that_was_requested_and_not_given_is_none() -> None:
    world = MeasuredDriver()
    denied = response(1)
    assert isinstance(denied.body, FetchResponse)
    denied.body.session_id = 0  # type: ignore[misc]  # Only mypy takes values as frozen.
    for request in (fetch(1, (0, 0)), fetch(1, (9, -1))):
        world.request(request, [denied])
        world.send(denied)
    assert [(row.revision, row.full) for row in world.rows] == [("none", True), ("final", True)]


def test_response_that_a_fault_took_is_a_row_with_the_size_that_it_had() -> None:
    world = MeasuredDriver()
    lost = response(1)
    world.request(fetch(1), [lost])
    assert world.rows == []
    world.event(TimerFired(1), [], 5)
    (row,) = world.rows
    assert row.response_bytes == sum(len(each) for each in encode_response(1, 17, 1, lost.body))
    assert row.service_us == 10 + 100
    world.send(lost)  # It was late only.
    assert len(world.rows) == 1


def test_client_that_leaves_costs_no_row() -> None:
    world = MeasuredDriver()
    world.request(fetch(1), [])
    world.event(Closed(1), [], 1)
    world.request(fetch(1), [response(1)])
    world.send(response(1))
    assert [row.service_us for row in world.rows] == [113]


def test_late_request_was_not_decoded_just_now() -> None:
    world = MeasuredDriver()
    world.event(fetch(-1), [response(-1)], 100)
    world.event(TimerFired(1), [], 5)
    assert [row.service_us for row in world.rows] == [100]


def test_each_revision_is_distinguished_from_the_others() -> None:
    world = MeasuredDriver()
    first = fetch(1, (9, 0), version=1000)
    incremental = fetch(1, (9, 4), version=1000)
    assert isinstance(incremental.body, FetchRequest)
    incremental.body.fetch_type = INCREMENTAL_FETCH  # type: ignore[misc]  # Only mypy takes values as frozen.
    for request in (fetch(1, (0, 0)), fetch(1, (9, 0)), fetch(1), fetch(1, (0, -1), 12), first, incremental):
        world.request(request, [response(1)])
        world.send(response(1))
    assert [(row.revision, row.full) for row in world.rows] == [
        ("final", True),
        ("final", True),
        ("final", False),
        ("none", True),
        ("first", True),
        ("first", False),
    ]


def test_quorum_s_fetches_are_left_out() -> None:
    world = MeasuredDriver()
    request = fetch(1)
    assert isinstance(request.body, FetchRequest)
    topics = [FetchTopic("", METADATA_TOPIC_ID, [FetchPartition(0, 0, 1000)])]
    request.body.topics = topics  # type: ignore[misc]  # Only mypy takes values as frozen.
    world.request(request, [response(1)])
    world.send(response(1))
    world.event(TimerFired(1), [], 5)
    assert world.rows == []


def test_rows_become_their_table(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    spool = TraceSpool(costs_beside(folder.spools / "node-2-1.jsonl"))
    row = FetchCost(77, 2, "fetcher-1", "final", False, 60, 500, 2, 2, 70, 113)
    spool.add(row.values())
    spool.close()
    assert folder.collect_trace() == 0
    table = pq.read_table(folder.path / "trace" / "fetch_costs-2-1.parquet")
    assert table.column_names == [column.name for column in FETCH_COSTS.columns]
    assert tuple(table.to_pylist()[0].values()) == row.values()
