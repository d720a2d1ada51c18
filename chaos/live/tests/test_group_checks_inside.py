"""Checks of groups and of the metadata epoch in a live node, which sees itself and no other."""

from typing import Any

import pytest

from chaos.checks.metadata.metadata_epoch import SwitchRespected
from chaos.checks.tests.check_context import check_context, note_row
from chaos.checks.tests.kafka_messages import offset_commit_request, offset_commit_response
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubGroupCoordinatorShard,
    StubImages,
    StubNode,
    StubQuorum,
    StubQuorumNode,
    image_of,
    node_partitions,
)
from chaos.live.node_side.checks_inside import ChecksInside
from chaos.live.tests.test_checks_inside import FakePipe
from reference_broker.core.events import Reply, Request
from reference_broker.groups.group import Group, Member
from reference_broker.ports.node_ports import Now
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from reports.manifest import CheckResult
from reports.rows import TraceRow

GATED, FENCED = "epoch-gated-by-transaction", "commits-fenced"
BOOTSTRAPPED, MARKERS_GATED = "bootstrapped", "markers-gated"
BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"
LEVEL, OTHER_LEVEL = b"\x01\x0c\x00\x11metadata.version\x00\x19\x00", b"\x01\x0c\x00\x0egroup.version\x00\x01\x00"
"""Values of FeatureLevelRecords: frame version, API key 12, version, name, level, tagged fields."""
BARE, WITH_EPOCH = b"\x01\x14\x00\x00", b"\x01\x14\x00\x01\x90\x4e\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07\x00"
"""Values of NoOpRecords: frame version, API key 20, version, tagged fields."""


class FakeLog:
    """A partition's log, or the metadata log: batches of one record."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.log_start_offset = 0
        self.log = self

    @property
    def log_end_offset(self) -> int:
        return len(self.batches)

    synced_offset = log_end_offset

    def append(self, value: bytes, key: bytes | None = None) -> None:
        record = Record(offset=0, key=key, value=value)
        self.batches.append(build([record], base_offset=len(self.batches), leader_epoch=1))

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(self.batches[offset:end])


def look(checks: ChecksInside, event: object = None, effects: tuple[object, ...] = ()) -> None:
    seen: Any = event
    done: Any = list(effects)
    checks.after(Now(5000, 0), seen, done)


def judged_log(
    guarantee: str, values: tuple[bytes, ...], features: dict[str, int] | None = None, noted: TraceRow | None = None
) -> tuple[CheckResult, ...]:
    """Return the results of a node that commits these records one by one and writes the note at the end."""
    pipe, log = FakePipe(), FakeLog()
    outlet: Any = pipe
    checks = ChecksInside(0, 1000, (guarantee,), outlet)
    quorum = StubQuorum(high_watermark=0, epoch=1, leader_id=1, is_leader=True)
    metadata_log: Any = log
    replica = StubQuorumNode(quorum=quorum, log=metadata_log)
    images = StubImages(image_of(features=features or {}))
    node: Any = StubNode(StubBroker(1, controller=images, quorum_node=replica))
    checks.built(node)
    for value in values:
        log.append(value)
        look(checks)
        quorum.high_watermark = log.log_end_offset
        look(checks)
    if noted is not None:
        checks.trace(noted)
    look(checks)
    return pipe.check_reports.judged((guarantee,))


@pytest.mark.clause("M-2")
@pytest.mark.parametrize(
    ("values", "breaks"),
    [
        ((BEGIN, BARE, END, WITH_EPOCH), False),
        ((BEGIN, WITH_EPOCH, END), True),
    ],
)
def test_epoch_inside_a_transaction_is_seen_in_the_nodes_own_log(values: tuple[bytes, ...], breaks: bool) -> None:
    (result,) = judged_log(GATED, values)
    assert result.holds is not breaks


@pytest.mark.thorough
@pytest.mark.clause("T-7")
@pytest.mark.parametrize(
    ("values", "breaks"),
    [
        ((BEGIN, LEVEL, END, BARE), False),
        ((BEGIN, LEVEL, ABORT, BEGIN, LEVEL, END, BARE), False),
        ((LEVEL, BARE), False),
        ((BEGIN, LEVEL, ABORT, BARE), True),
        ((BEGIN, BARE, END, BARE), True),
        ((OTHER_LEVEL, BARE), True),
    ],
)
def test_log_without_metadata_version_is_seen_in_the_nodes_own_log(values: tuple[bytes, ...], breaks: bool) -> None:
    (result,) = judged_log(BOOTSTRAPPED, values)
    assert result.holds is not breaks


@pytest.mark.clause("T-2")
@pytest.mark.parametrize(("level", "breaks"), [(0, False), (12, True), (13, False)])
def test_marker_below_its_level_is_seen_in_the_nodes_own_image(level: int, breaks: bool) -> None:
    features = {"metadata.version": level} if level else {}
    noted = note_row(0, 1, "metadata_committed", offset=4, kind="begin", number=0, of=0)
    (result,) = judged_log(MARKERS_GATED, (BEGIN,), features, noted)
    assert result.holds is not breaks


@pytest.mark.parametrize(("error", "breaks"), [(ErrorCode.none, True), (ErrorCode.illegal_generation, False)])
def test_commit_of_an_earlier_generation_may_not_be_acknowledged(error: ErrorCode, breaks: bool) -> None:
    pipe = FakePipe()
    outlet: Any = pipe
    checks = ChecksInside(0, 1000, (FENCED,), outlet)
    member = Member("m", None, "client", "host", 2000, 1000, ())
    groups = {"g": Group.loaded("g", 5, "consumer", "range", "m", 0, (member,))}
    node: Any = StubNode(StubBroker(1, groups=StubCoordinator([StubGroupCoordinatorShard(groups=groups)])))
    checks.built(node)
    request, response = offset_commit_request("m", 4), offset_commit_response(error)
    tag, key = Tag(1, 8, "member-0", 0, -1), int(ApiKey.OFFSET_COMMIT)
    look(checks, Request(1, 7, key, 8, "member-0", request, tag))
    look(checks, None, (Reply(1, 7, key, 8, response, tag),))
    (result,) = pipe.check_reports.judged((FENCED,))
    assert result.holds is not breaks


@pytest.mark.clause("M-14")
def test_records_of_another_leader_are_no_violation_on_single_node() -> None:
    log, key = FakeLog(), b"\x00\x01key"
    led_log: Any = log
    led = Partition("__consumer_offsets", bytes(16), 0, 3, led_log)
    node: Any = StubNode(StubBroker(1, partitions=node_partitions(led)))
    log.append(b"\x00\x04of another", key)
    alone, all_seeing = SwitchRespected(check_context(alone=True)), SwitchRespected(check_context())
    for check in (alone, all_seeing):
        check.inspect(1, 0, node, None, False)
    assert (len(alone.violations), len(all_seeing.violations)) == (0, 1)
    log.append(b"\x00\x03as before", key)
    alone.inspect(2, 0, node, None, False)
    assert not alone.violations
    log.append(b"\x00\x04of its own", key)
    alone.inspect(3, 0, node, None, False)
    assert len(alone.violations) == 1
