"""The simulator's checks in a live node, whose violations and evidence the runner writes into the manifest."""

from typing import Any
from unittest.mock import Mock

import pytest

from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode, node_partitions
from chaos.live.node_side.checks_inside import ChecksInside, NodeCheckReports
from chaos.live.node_side.instrumentation import NodeInstrumentation
from reference_broker.core.events import Reply, Request
from reference_broker.ports.node_ports import Now
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.tags import Tag

FENCED = "stale-leader-epoch-fenced"
LEADER_EPOCH = 3


class FakePipe:
    """A pipe that passes the node's reports to the runner's side at once."""

    def __init__(self) -> None:
        self.check_reports = NodeCheckReports()
        self.lines: list[dict[str, object]] = []

    def report(self, key: str, value: object) -> None:
        self.lines.append({key: value})
        self.check_reports.line(1, {key: value})


def fetches(pipe: FakePipe, guarantees: tuple[str, ...], leader_epochs: list[int]) -> None:
    """One full fetch without a session for each epoch with data in its response, by the leader of epoch 3."""
    outlet: Any = pipe
    checks = ChecksInside(0, 1000, guarantees, outlet)
    led = Partition("t", b"", 0, LEADER_EPOCH, StubLog(high_watermark=10).as_log())
    checks.built(StubNode(StubBroker(1, partitions=node_partitions(led))).as_node())
    for number, leader_epoch in enumerate(leader_epochs):
        request = FetchRequest(
            session_epoch=-1, topics=[FetchTopic("t", b"", [FetchPartition(0, 0, 100, leader_epoch)])]
        )
        response = FetchResponse(responses=[FetchTopicResponse("t", b"", [PartitionData(0, 0, 10, records=b"x")])])
        tag = Tag(1, 12, "fetcher-0", 0, -1)
        reply = Reply(1, number, 1, 12, response, tag)
        effects = checks.after(Now(5000 + number, 0), Request(1, number, 1, 12, "fetcher-0", request, tag), [reply])
        assert list(effects) == [reply], "a check changes nothing"


@pytest.mark.clause("F-13")
def test_violation_is_written_to_manifest_with_node_and_first_time() -> None:
    pipe = FakePipe()
    fetches(pipe, (FENCED, "lost-write"), [LEADER_EPOCH, LEADER_EPOCH - 1, LEADER_EPOCH - 2])
    (result,) = pipe.check_reports.judged((FENCED, "lost-write"))
    assert (result.guarantee, result.holds, result.at_us) == (FENCED, False, 4001)
    assert result.detail.startswith("node-1: fetcher-0 sent a fetch of t-0 in leader epoch 2")
    assert result.evidence >= 1


def test_number_of_checks_is_reported_while_node_runs() -> None:
    pipe = FakePipe()
    fetches(pipe, (FENCED,), [LEADER_EPOCH] * 20)
    assert len(pipe.lines) == 5, "one line at each power of two"
    (result,) = pipe.check_reports.judged((FENCED,))
    assert result.holds
    assert result.evidence == 16


def test_only_promised_guarantees_are_judged() -> None:
    pipe = FakePipe()
    fetches(pipe, ("lost-write",), [LEADER_EPOCH - 1])
    assert pipe.lines == []
    assert pipe.check_reports.judged(("lost-write",)) == ()


def test_guarantee_never_checked_has_no_evidence() -> None:
    (result,) = NodeCheckReports().judged((FENCED,))
    assert (result.holds, result.evidence) == (True, 0)


def test_interval_of_snapshots_counts_from_the_load() -> None:
    inside, node = NodeInstrumentation.__new__(NodeInstrumentation), Mock()
    inside._spec, inside._node = Mock(origin_us=5_000), node
    inside._interceptor = inside._disk_faults = inside._losses = Mock()
    inside.handle_command({"disarm": True})
    node.broker.quorum_node.generator.count_from.assert_not_called()
    inside.handle_command({"load_from_us": 700})
    node.broker.quorum_node.generator.count_from.assert_called_once_with(5_700)
