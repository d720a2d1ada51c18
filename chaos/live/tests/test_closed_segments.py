"""Closed segments of a partition's leader are compared with how far it reports them to be in the tier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chaos.live import closed_segments
from chaos.live.closed_segments import ClosedSegments, segments_of
from reference_broker.blocking.transport import TransportError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from scenarios.loader import find

TOPIC = "crucible-1-hot"
HERE, NOWHERE, PROXY = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


class StubLaunched(NamedTuple):
    """A node of the run."""

    listen: str
    advertised: str
    data: Path
    running: bool = True


class LedPartition(NamedTuple):
    """A partition in a Metadata response."""

    partition_index: int
    leader_id: int


class ListedPartition(NamedTuple):
    """A partition in a ListOffsets response."""

    error_code: ErrorCode
    offset: int


class Topic(NamedTuple):
    """A topic in a response."""

    name: str
    partitions: Sequence[LedPartition | ListedPartition]


class BrokerAddress(NamedTuple):
    """A broker in a Metadata response."""

    node_id: int
    host: str
    port: int


class StubResponse(NamedTuple):
    """A response to Metadata, or to ListOffsets, which has no brokers."""

    topics: Sequence[Topic]
    brokers: Sequence[BrokerAddress] = ()


class Leader:
    """Responds for both nodes: node 4 leads the only partition, and ``tiered`` is the last offset in its tier.

    ``now_s`` is the time.
    """

    def __init__(self, folder: Path, *bases: int) -> None:
        self.tiered, self.error, self.now_s = -1, ErrorCode.none, 100.0
        place = folder / f"{TOPIC}-0"
        place.mkdir()
        for base in bases:
            (place / f"{base:020}.log").touch()
        self.nodes: list[Any] = [
            StubLaunched(NOWHERE, NOWHERE, folder / "elsewhere"),
            StubLaunched(HERE, PROXY, folder),
        ]
        self.segments = ClosedSegments(self.nodes, {TOPIC: 1}, 12)

    def respond(self, node: Any, api_key: ApiKey, version: int, body: object) -> StubResponse:  # noqa: ARG002
        if api_key is ApiKey.METADATA:
            return StubResponse([Topic(TOPIC, [LedPartition(0, 4)])], [BrokerAddress(4, "127.0.0.1", 3)])
        assert (node.listen, version) == (HERE, 9)
        return StubResponse([Topic(TOPIC, [ListedPartition(self.error, self.tiered)])])

    def looks(self, after_s: float = 1.0) -> bool:
        """Return whether nothing is left to wait for."""
        self.now_s += after_s
        return self.segments.waited_for()


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leader:
    made = Leader(tmp_path, 0, 100, 250)
    monkeypatch.setattr(closed_segments, "_response", made.respond)
    monkeypatch.setattr("chaos.live.closed_segments.time.monotonic", lambda: made.now_s)
    return made


@pytest.mark.clause("P-14")
def test_each_closed_segment_must_be_in_the_tier_to_its_last_record(leader: Leader) -> None:
    for leader.tiered, left in ((-1, 2), (98, 2), (99, 1), (248, 1), (249, 0)):
        assert leader.looks() is (left == 0)
        assert (leader.segments.looked_at, len(leader.segments.left)) == (2, left)
        judged = leader.segments.judged(7)
        assert (judged.holds, judged.evidence, judged.at_us) == (left == 0, 2, 7)
    leader.tiered, leader.error = 249, ErrorCode.not_leader_or_follower
    assert not leader.looks()
    assert f"{TOPIC}-0 from 0 to 100" in leader.segments.judged(7).detail


def test_log_with_its_active_segment_alone_has_nothing_to_store(tmp_path: Path, leader: Leader) -> None:
    for each in (tmp_path / f"{TOPIC}-0").glob("*[1-9]*"):
        each.unlink()
    assert leader.looks()
    assert leader.segments.judged(7).evidence == 0


def test_node_that_does_not_respond_is_queried_again(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> Any:
        raise TransportError("it is gone")

    leader.tiered = 249
    with monkeypatch.context() as patch:
        patch.setattr(closed_segments, "_response", silent)
        assert not leader.looks()
    assert leader.looks()


def test_wait_goes_on_while_segments_get_there_and_ends_when_none_does(leader: Leader) -> None:
    assert not leader.looks()
    assert not leader.looks(after_s=closed_segments.LIMIT_S)
    leader.tiered = 99
    assert not leader.looks()
    assert not leader.looks(after_s=closed_segments.LIMIT_S - 1.0)
    assert leader.looks(after_s=2.0)
    judged = leader.segments.judged(7)
    assert not judged.holds
    assert "1 closed segments were not in the tier after the heal, and none got there within 60 s" in judged.detail


def test_it_is_judged_where_it_is_promised(leader: Leader) -> None:
    scenario = find("upgrade-path")
    segments = segments_of(scenario, leader.nodes, "crucible-1-", 12)
    assert segments is not None
    assert segments.topics == {TOPIC: 1}
    assert segments_of(find("plain-load"), leader.nodes[1:], "", 12) is None
