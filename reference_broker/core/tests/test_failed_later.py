"""A bug in later events of a request fails only that request. A bug in shared state ends the node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from reference_broker.apis.groups import k11_join_group
from reference_broker.apis.metadata import k03_metadata, k06_update_metadata
from reference_broker.apis.records import k00_produce
from reference_broker.apis.records.fetch import Fetch
from reference_broker.apis.records.tests.sliced_fetches import slices_of_one
from reference_broker.controller.planning.topic_creation import TopicCreation
from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.core.tests.hostile_records import raw_batch, raw_record
from reference_broker.core.tests.node_world import NodeWorld, batch, create_request, fetch_request, produce_request
from reference_broker.core.tests.test_groups_of_a_node import body, coordinated, stable
from reference_broker.groups import rebalances
from reference_broker.groups.offset_metadata_manager import OffsetMetadataManager
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.records import MetadataFault
from reference_broker.ports.slicing import COMMITTED_OFFSETS_PER_SLICE, DESCRIBED_TOPICS_PER_SLICE
from reference_broker.quorum.leader import LeaderState
from reference_broker.quorum.messages import build_fetch_request
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.records.compression import Compression
from reference_broker.serve.log_lines import describe_bug as crash_words
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import UpdateMetadataRequest1001
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic

UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error
VICTIM = 50
"""The connection whose request fails."""


class BugError(Exception):
    pass


def broken(*_: Any, **__: Any) -> Any:
    raise BugError


@contextmanager
def bug_in(owner: object, name: str, bug: Callable[..., Any] = broken) -> Iterator[None]:
    with patch.object(owner, name, bug):
        yield


def contained(world: NodeWorld) -> list[str]:
    """Make the node contain bugs. Return the list of failed requests."""
    costs: list[str] = []
    world.node.on_bug = lambda failed, _: costs.append(
        failed if isinstance(failed, str) else ApiKey(failed.api_key).name
    )
    return costs


def error_of(world: NodeWorld, number: int) -> Any:
    """Return the error of the response."""
    body: Any = world.replies[number].body
    return body.error_code


def goes_on(world: NodeWorld, topic: str = "t") -> None:
    """Assert that the node serves other requests, and has dropped the failed one."""
    assert world.produce(topic, 0, batch()).error_code == ErrorCode.none
    assert not world.node._calls


def waiting_fetch(world: NodeWorld, max_wait_ms: int = 60_000) -> int:
    end = world.log("t").log_end_offset
    return world.send(ApiKey.FETCH, 12, fetch_request("t", 0, end, max_wait_ms), VICTIM)


@pytest.mark.parametrize("where", ["_complete", "_look_up"])
def test_bug_in_parked_fetch_fails_fetch_and_not_produce(where: str) -> None:
    world = NodeWorld()
    world.create("t")
    costs = contained(world)
    number = waiting_fetch(world)
    with bug_in(Fetch, where):
        assert world.produce("t", 0, batch()).error_code == ErrorCode.none
        assert world.produce("t", 0, batch()).error_code == ErrorCode.none
    assert costs == ["FETCH"]
    assert error_of(world, number) == UNKNOWN_SERVER_ERROR
    goes_on(world)


def test_bug_at_max_wait_of_fetch_fails_only_fetch() -> None:
    world = NodeWorld()
    world.create("t")
    costs = contained(world)
    number = waiting_fetch(world, max_wait_ms=100)
    with bug_in(Fetch, "_complete"):
        world.advance(200)
    assert costs == ["FETCH"]
    assert error_of(world, number) == UNKNOWN_SERVER_ERROR
    goes_on(world)


def test_bug_in_dropping_request_of_closed_connection_fails_no_other() -> None:
    world = NodeWorld()
    world.create("t")
    costs = contained(world)
    with bug_in(Fetch, "_connection_closed"):
        waiting_fetch(world)
        world.close(VICTIM)
    assert costs == ["FETCH"]
    goes_on(world)


@pytest.mark.parametrize(
    ("owner", "where"),
    [
        (Fetch, "_look_up_all"),
        (Fetch, "_read_records"),
        (Fetch, "_add_changed"),
        (Fetch, "_keep_session"),
        (FetchSession, "after_response"),
    ],
)
@pytest.mark.parametrize("session_epoch", [-1, 0, 1])
def test_bug_in_later_slice_of_fetch_fails_fetch_and_session(owner: type, where: str, session_epoch: int) -> None:
    world = NodeWorld()
    world.create("t")
    world.produce("t", 0, batch())
    costs = contained(world)
    named = FetchTopic("t", NO_TOPIC_ID, [FetchPartition(index, 0, 1 << 20) for index in range(3)])
    session_id, sessions = 0, world.node.broker.fetch_sessions
    with slices_of_one():
        if session_epoch == 1:
            world.send(ApiKey.FETCH, 12, FetchRequest(topics=[named], session_epoch=0))
            world.settle()
            (session_id,) = sessions.sessions
        with bug_in(owner, where):
            request = FetchRequest(topics=[named], session_id=session_id, session_epoch=session_epoch)
            world.send(ApiKey.FETCH, 12, request, VICTIM)
            world.settle()
    is_settled = where == "after_response" and session_epoch == -1
    assert costs == ([] if is_settled else ["FETCH"])
    assert not sessions.sessions
    assert not sessions.arrivals.keys
    assert not world.node.broker.partitions.by_name["t", 0].watchers
    goes_on(world)


def test_bug_in_later_slice_of_response_fails_request() -> None:
    world = NodeWorld()
    world.create("t")
    costs = contained(world)
    names = [{"name": f"missing-{number}"} for number in range(3 * DESCRIBED_TOPICS_PER_SLICE)]
    with bug_in(k03_metadata, "missing_error", fails_after(2 * DESCRIBED_TOPICS_PER_SLICE)):
        number = world.send(ApiKey.METADATA, 9, body(ApiKey.METADATA, topics=names), VICTIM)
        world.settle()
    assert costs == ["METADATA"]
    assert number not in world.replies
    assert "bug" in world.closed[VICTIM]
    goes_on(world)


def fails_after(times: int, result: Any = ErrorCode.unknown_topic_or_partition) -> Callable[..., Any]:
    left = iter(range(times))

    def work(*_: Any, **__: Any) -> Any:
        if next(left, None) is None:
            raise BugError
        return result

    return work


def test_bug_in_record_validation_fails_produce() -> None:
    world = NodeWorld()
    world.create("t")
    world.create("c", cleanup_policy="compact")
    costs = contained(world)
    records = b"".join(raw_record(0, at, b"%d" % at) for at in range(2000))
    large = raw_batch(records, 2000, Compression.ZSTD)

    def validate_records(*_: Any) -> Iterator[None]:
        yield
        raise BugError

    with bug_in(UnifiedLog, "validate_records", validate_records):
        number = world.send(ApiKey.PRODUCE, 9, produce_request("c", 0, large), VICTIM)
        world.settle()
    assert costs == ["PRODUCE"]
    assert number not in world.replies
    assert VICTIM in world.closed
    assert world.produce("c", 0, large).error_code == ErrorCode.none
    goes_on(world)


def test_bug_in_later_slice_of_commit_fails_commit() -> None:
    world = coordinated()
    world.create("t")
    costs = contained(world)
    validate = OffsetMetadataManager._validate
    left = iter(range(1))

    def fails_second(*given: Any) -> None:
        if next(left, None) is None:
            raise BugError
        validate(*given)

    offsets = [{"partition_index": 0, "committed_offset": at} for at in range(3 * COMMITTED_OFFSETS_PER_SLICE)]
    commit = {"group_id": "h", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": offsets}]}
    with bug_in(OffsetMetadataManager, "_validate", fails_second):
        world.send(ApiKey.OFFSET_COMMIT, 8, body(ApiKey.OFFSET_COMMIT, **commit), VICTIM)
        world.settle()
    assert costs == ["OFFSET_COMMIT"]
    assert VICTIM in world.closed
    response = world.request(ApiKey.OFFSET_COMMIT, 8, body(ApiKey.OFFSET_COMMIT, **commit))
    assert {partition.error_code for partition in response.topics[0].partitions} == {ErrorCode.none}
    goes_on(world)


def join(world: NodeWorld, connection: int, group_id: str = "h") -> int:
    fields: dict[str, Any] = {
        "group_id": group_id,
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=60),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    return world.send(ApiKey.JOIN_GROUP, 3, body(ApiKey.JOIN_GROUP, **fields), connection)


def test_bug_in_response_to_one_member_keeps_group() -> None:
    world = coordinated(group_initial_rebalance_delay_ms="100")
    world.create("t")
    costs = contained(world)
    first, second = join(world, VICTIM), join(world, VICTIM + 1)
    build_response = k11_join_group._response
    times = iter(range(1))

    def fails_once(*given: Any) -> Any:
        if next(times, None) is not None:
            raise BugError
        return build_response(*given)

    with bug_in(k11_join_group, "_response", fails_once):
        world.advance(500)
    assert costs == ["JOIN_GROUP"]
    assert sorted(error_of(world, each) for each in (first, second)) == [UNKNOWN_SERVER_ERROR, ErrorCode.none]
    world.node.broker.groups.validate()
    goes_on(world)


def test_bug_in_update_metadata_fails_only_that_update() -> None:
    world = NodeWorld(crucible_metadata_epoch_enable="true")
    world.create("t")
    costs = contained(world)
    epoch = world.node.broker.lifecycle.registered_epoch
    update = UpdateMetadataRequest1001(
        controller_id=1,
        controller_epoch=2**20,
        metadata_epoch=9,
        partition_states=(),
        live_brokers=(),
        broker_epoch=epoch,
    )
    with bug_in(k06_update_metadata, "_applied"):
        first = world.send(ApiKey.UPDATE_METADATA, 1001, update, VICTIM)
        world.settle()
    second = world.send(ApiKey.UPDATE_METADATA, 1001, update, VICTIM)
    world.settle()
    assert costs == ["UPDATE_METADATA"]
    assert error_of(world, first) == UNKNOWN_SERVER_ERROR
    assert error_of(world, second) != UNKNOWN_SERVER_ERROR
    goes_on(world)


@pytest.mark.parametrize("bug", [BugError, MetadataFault])
def test_bug_in_planning_fails_change_and_next_one_succeeds(bug: type[Exception]) -> None:
    world = NodeWorld()
    world.create("t")
    costs = contained(world)

    def plan(*_: Any) -> Iterator[None]:
        yield
        raise bug("planted")

    with bug_in(TopicCreation, "plan", plan):
        response = world.request(ApiKey.CREATE_TOPICS, 7, create_request("u"), VICTIM)
    assert response.topics[0].error_code == UNKNOWN_SERVER_ERROR
    assert costs == [TopicCreation.name]
    assert world.create("u").error_code == ErrorCode.none
    goes_on(world)


def test_bug_in_acknowledgement_fails_parked_produce() -> None:
    world = ClusterWorld(3, replica_lag_time_max_ms="60000")
    world.ready()
    world.create("t")
    leader = world.leader("t")
    costs: list[int] = []
    node = world.members[leader].node
    node.on_bug = lambda failed, _: costs.append(getattr(failed, "api_key", -1))
    for member in world.members:
        if member != leader:
            world.sever(leader, member)
    with bug_in(k00_produce, "response_with_errors"):
        world.send_produce("t")
        world.run(4000)
    assert costs == [ApiKey.PRODUCE]
    world.heal()
    world.run_until(lambda: world.leader("t") != -1)
    assert world.produce("t").error_code == ErrorCode.none


def test_uncontained_bug_ends_node() -> None:
    """The simulator must detect them."""
    world = NodeWorld()
    world.create("t")
    waiting_fetch(world)
    with bug_in(Fetch, "_look_up"), pytest.raises(BugError):
        world.produce("t", 0, batch())


def test_bug_in_shared_group_state_ends_node_with_location() -> None:
    world = coordinated(group_initial_rebalance_delay_ms="100")
    costs = contained(world)
    join(world, VICTIM)
    with bug_in(rebalances, "complete_join"), pytest.raises(BugError) as bug:
        world.advance(500)
    assert costs == []
    assert crash_words(bug.value).endswith(", in a timer")


@pytest.mark.parametrize("step", ["a fetch", "an append"])
def test_bug_in_quorum_step_ends_node(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The bug came with a request of a node, or with a client's change. The state of the quorum may be half changed."""
    world = NodeWorld()
    world.node.on_bug = lambda *_: pytest.fail("the bug was contained")

    monkeypatch.setattr(LeaderState, "fetch" if step == "a fetch" else "appended", broken)
    quorum = world.node.broker.quorum
    fetched = build_fetch_request(quorum.cluster_id, 2, quorum.epoch, OffsetAndEpoch(0, 0), 0, 1000, 0)
    with pytest.raises(BugError) as ended:
        world.request(ApiKey.FETCH, 17, fetched) if step == "a fetch" else world.create("t")
    assert ended.value.__notes__


def test_bug_in_sync_completion_ends_node_with_location() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    contained(world)
    with bug_in(UnifiedLog, "mark_synced"), pytest.raises(BugError) as bug:
        world.produce("t", 0, batch())
    assert crash_words(bug.value).endswith(", in what a sync set off")


def test_bug_in_heartbeat_keeps_members_of_stable_group() -> None:
    world = coordinated()
    world.create("t")
    stable(world)
    costs = contained(world)
    with bug_in(type(world.node.broker.groups.group_manager), "heartbeat"):
        number = world.send(ApiKey.HEARTBEAT, 4, body(ApiKey.HEARTBEAT, group_id="g"), VICTIM)
    assert (error_of(world, number), costs) == (UNKNOWN_SERVER_ERROR, ["HEARTBEAT"])
    world.node.broker.groups.validate()
    goes_on(world)
