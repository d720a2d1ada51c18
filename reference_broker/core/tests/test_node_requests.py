"""The node as a whole: dispatch, order and durability of responses, closed connections, determinism."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

from reference_broker.core.events import Reply, Sync, SyncFailed
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import (
    NodeWorld,
    batch,
    create_request,
    delete_request,
    fetch_request,
    produce_request,
    sent_batch,
)
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode


def test_api_versions_of_unknown_version_returns_version_zero_layout() -> None:
    world = NodeWorld()
    number = world.send(ApiKey.API_VERSIONS, 99, None)
    reply = world.replies[number]
    body: Any = reply.body
    assert (reply.api_version, body.error_code) == (0, ErrorCode.unsupported_version)
    assert [key.api_key for key in body.api_keys] == [ApiKey.API_VERSIONS]
    assert world.closed == {}


@pytest.mark.parametrize(("api_key", "version"), [(9999, 0), (ApiKey.PRODUCE, 2), (ApiKey.SHARE_FETCH, 1)])
def test_unserved_request_closes_only_its_connection(api_key: int, version: int) -> None:
    world = NodeWorld()
    number = world.send(api_key, version, object(), connection=5)
    assert number not in world.replies
    assert list(world.closed) == [5]
    assert "not served" in world.closed[5]
    assert world.create("t").error_code == ErrorCode.none


def test_produce_with_acks_zero_gets_no_response_and_error_closes_connection() -> None:
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, batch(), acks=0) is None
    assert world.log("t").log_end_offset == 1
    world.send(ApiKey.PRODUCE, 9, produce_request("nowhere", 0, batch(), acks=0), connection=8)
    assert world.closed == {8: "produce with acks=0 to nowhere-0: UNKNOWN_TOPIC_OR_PARTITION"}


def test_flush_policy_makes_produce_wait_for_sync() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.hold_syncs = True
    first = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()))
    assert first not in world.replies
    second = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()), connection=2)
    world.complete_sync()
    assert first in world.replies
    assert second not in world.replies, "its bytes were appended after the sync started"
    world.complete_sync()
    assert second in world.replies


@pytest.mark.clause("P-6")
def test_duplicate_batch_is_acknowledged_once_original_is_durable() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.hold_syncs = True
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, sent_batch(7, 0)))
    world.close(1)
    retry = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, sent_batch(7, 0)), connection=2)
    assert retry not in world.replies
    world.complete_syncs()
    body: Any = world.replies[retry].body
    partition = body.responses[0].partitions[0]
    assert (partition.error_code, partition.base_offset) == (ErrorCode.none, 0)
    again = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, sent_batch(7, 0)), connection=2)
    assert again in world.replies, "what is durable needs no sync"


def test_flush_policy_applies_to_acks_zero() -> None:
    world = NodeWorld(log_flush_interval_messages="3")
    world.create("t")
    for _ in range(10):
        world.produce("t", 0, batch(), acks=0)
    assert world.log("t").appended_since_sync < 3


def test_flush_policy_is_per_topic() -> None:
    world = NodeWorld()
    world.create("careful", flush_messages="1")
    world.create("timed", flush_ms="50")
    world.create("careless")
    world.hold_syncs = True
    for topic, completed in (("careful", False), ("timed", True), ("careless", True)):
        number = world.send(ApiKey.PRODUCE, 9, produce_request(topic, 0, batch()))
        assert (number in world.replies) is completed
    before = len(world.syncs)
    world.advance(49)
    assert len(world.syncs) == before
    world.advance(1)
    assert Sync(world.syncs[-1][0], world.log("timed").sync_point().paths) in world.effects


@pytest.mark.clause("P-5")
@pytest.mark.parametrize(("policy", "error"), [("reject", ErrorCode.unknown_producer_id), ("accept", ErrorCode.none)])
def test_unknown_producer_policy_reaches_log(policy: str, error: Error) -> None:
    world = NodeWorld(crucible_unknown_producer_id_policy=policy)
    world.create("t")
    assert world.produce("t", 0, sent_batch(7, 5)).error_code == error


@pytest.mark.clause("P-5")
def test_unknown_producer_continues_its_sequence_unless_policy_forbids() -> None:
    """KIP-360: in a partition without records, with other producers only, or emptied by DeleteRecords."""
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, sent_batch(7, 17)).error_code == ErrorCode.none
    assert world.produce("t", 0, sent_batch(8, 17)).error_code == ErrorCode.none
    world.log("t").delete_records_before(2)
    assert world.produce("t", 0, sent_batch(9, 17)).error_code == ErrorCode.none
    assert world.produce("t", 0, sent_batch(8, 19)).error_code == ErrorCode.out_of_order_sequence_number, "it is known"


@pytest.mark.clause("P-7", "UnifiedLogTest.testPeriodicProducerIdExpiration")
def test_producer_expiration_reaches_log() -> None:
    world = NodeWorld(producer_id_expiration_ms="1000", producer_id_expiration_check_interval_ms="100")
    world.create("t")
    world.produce("t", 0, sent_batch(7, 0))
    world.advance(900)
    assert 7 in world.log("t").producers.by_id
    world.advance(300)
    assert world.log("t").producers.by_id == {}


def test_transactional_batch_without_transactional_id_is_rejected() -> None:
    """Otherwise a transaction would open that no producer can end, and read_committed consumers would wait for ever."""
    world = NodeWorld()
    world.create("t")
    record = Record(timestamp_ms=world.now.wall_ms, value=b"v")
    data = build([record], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert world.produce("t", 0, data).error_code == ErrorCode.transactional_id_authorization_failed
    assert world.log("t").log_end_offset == 0


def test_closed_connection_drops_parked_fetch() -> None:
    world = NodeWorld()
    world.create("t")
    number = world.send(ApiKey.FETCH, 12, fetch_request("t", max_wait_ms=10_000), connection=3)
    assert number not in world.replies
    world.close(3)
    world.produce("t", 0, batch())
    world.advance(20_000)
    assert number not in world.replies


def test_produce_completes_parked_fetch() -> None:
    world = NodeWorld()
    world.create("t")
    number = world.send(ApiKey.FETCH, 12, fetch_request("t", max_wait_ms=10_000), connection=3)
    assert number not in world.replies
    world.produce("t", 0, batch())
    assert number in world.replies


def test_timers_of_completed_fetches_are_cancelled() -> None:
    """A fetch with a wait of weeks that completes at once leaves no timer for weeks."""
    world = NodeWorld()
    world.create("t")
    for offset in range(50):
        world.send(ApiKey.FETCH, 12, fetch_request("t", offset=offset, max_wait_ms=2**31 - 1), connection=3)
        world.produce("t", 0, batch())
    world.advance(60_000)
    assert len(world.timers) < 20


def test_failed_sync_ends_node() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.hold_syncs = True
    number = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()))
    with pytest.raises(NodeFailed, match="input/output"):
        world.give(SyncFailed(world.syncs[0][0], "input/output error"))
    assert number not in world.replies


def test_disk_error_without_request_ends_node() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk)
    world.create("t")
    world.produce("t", 0, batch())
    world.hold_syncs = True
    world.send(ApiKey.DELETE_TOPICS, 6, delete_request("t"))
    disk.fail_after = 0
    with pytest.raises(NodeFailed, match="made to fail"):
        world.complete_syncs()


def test_housekeeping_continues_with_full_disk() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk, log_retention_check_interval_ms="1000", log_roll_ms="500")
    world.create("t")
    world.produce("t", 0, batch())
    disk.fail_after = 0
    world.advance(3000)
    assert len(world.log("t").segments) == 1
    disk.fail_after = None
    world.advance(2000)
    assert len(world.log("t").segments) == 2


def test_full_disk_returns_error_and_node_keeps_running() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk)
    world.create("t")
    disk.fail_after = 0
    assert world.produce("t", 0, batch()).error_code == ErrorCode.kafka_storage_error
    assert world.create("other").error_code == ErrorCode.kafka_storage_error
    disk.fail_after = None
    assert world.produce("t", 0, batch()).base_offset == 0
    assert world.create("other").error_code == ErrorCode.none


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_invalid_acks_are_rejected(acks: int) -> None:
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, batch(), acks=acks).error_code == ErrorCode.invalid_required_acks
    assert world.log("t").log_end_offset == 0


@pytest.mark.clause("LogValidatorTest.checkOnlyOneBatch")
def test_two_batches_in_one_partition_are_rejected() -> None:
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, batch() + batch()).error_code == ErrorCode.invalid_record
    assert world.log("t").log_end_offset == 0


def test_rejected_partition_does_not_fail_others() -> None:
    world = NodeWorld()
    world.create("t", 3)
    garbage = b"garbage, and more than a header of it" * 3
    parts = [produce_request("t", *part) for part in ((0, garbage), (1, batch()), (7, batch()), (2, None))]
    body = replace(parts[0], topics=[topic for part in parts for topic in part.topics])
    response = world.request(ApiKey.PRODUCE, 9, body)
    codes = [partition.error_code for topic in response.responses for partition in topic.partitions]
    assert codes[1:] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_record]
    assert codes[0] in (ErrorCode.corrupt_message, ErrorCode.invalid_record)


@pytest.mark.parametrize("earlier", [batch(b"earlier"), b"", None])
@pytest.mark.parametrize("in_one_topic", [True, False])
def test_last_batch_of_duplicate_partition_is_written(earlier: bytes | None, in_one_topic: bool) -> None:
    world = NodeWorld()
    world.create("t", 2)
    named = [(0, earlier), (1, batch(b"other")), (0, batch(b"last"))]
    topics = [topic for index, data in named for topic in produce_request("t", index, data).topics]
    if in_one_topic:
        topics = [replace(topics[0], partitions=[partition for topic in topics for partition in topic.partitions])]
    (topic,) = world.request(ApiKey.PRODUCE, 9, replace(produce_request("t", 0, None), topics=topics)).responses
    results = {partition.partition: (partition.error_code, partition.base_offset) for partition in topic.partitions}
    assert results == {0: (ErrorCode.none, 0), 1: (ErrorCode.none, 0)}
    assert len(topic.partitions) == 2
    assert world.log("t").read(0, 1 << 20, 9, at_least_one=True).count(b"last") == 1
    assert world.log("t").log_end_offset == 1


def test_topic_without_partitions_is_omitted_in_produce_response() -> None:
    world = NodeWorld()
    world.create("t")
    whole = produce_request("t", 0, batch())
    empty = [replace(topic, partitions=[]) for topic in whole.topics]
    assert world.request(ApiKey.PRODUCE, 9, replace(whole, topics=empty)).responses == []
    (topic,) = world.request(ApiKey.PRODUCE, 9, replace(whole, topics=[*empty, *whole.topics])).responses
    assert [partition.base_offset for partition in topic.partitions] == [0]


def test_same_events_cause_same_effects() -> None:
    def life() -> list[str]:
        world = NodeWorld(seed=5, log_flush_interval_messages="1")
        world.create("t", 3)
        world.create("u")
        world.send(ApiKey.FETCH, 12, fetch_request("t", max_wait_ms=300), connection=3)
        world.produce("t", 0, sent_batch(world.producer_id(), 0))
        world.advance(1000)
        world.delete("u")
        world.shut_down()
        world.settle()
        return [repr(effect) for effect in world.effects]

    assert life() == life()


def test_producer_ids_are_unique_across_restarts() -> None:
    disk = MemoryDisk()
    given = []
    for seed in range(3):
        world = NodeWorld(disk, seed=seed)
        given += [world.producer_id() for _ in range(3)]
    assert len(dict.fromkeys(given)) == 9


def test_init_producer_id_waits_for_durable_block() -> None:
    world = NodeWorld()
    world.hold_syncs = True
    body = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))  # type: ignore[arg-type]
    numbers = [world.send(ApiKey.INIT_PRODUCER_ID, 4, body, connection) for connection in range(5)]
    assert not any(number in world.replies for number in numbers)
    world.complete_syncs()
    replies: list[Any] = [world.replies[number] for number in numbers]
    assert all(isinstance(reply, Reply) for reply in replies)
    assert [reply.body.producer_id for reply in replies] == [0, 1, 2, 3, 4]


def test_topic_is_not_returned_before_it_is_durable() -> None:
    world = NodeWorld()
    world.hold_syncs = True
    number = world.send(ApiKey.CREATE_TOPICS, 7, create_request("t"))
    assert number not in world.replies
    assert world.node.broker.metadata.topics == {}
    world.complete_syncs()
    assert number in world.replies
    assert list(world.node.broker.metadata.topics) == ["t"]


@pytest.mark.clause("F-13")
def test_empty_partition_has_leader_epoch_without_file() -> None:
    world = NodeWorld()
    world.create("t")
    request: Any = fetch_request("t", max_wait_ms=0)  # Only mypy takes the fields as frozen.
    request.topics[0].partitions[0].last_fetched_epoch = 0
    response = world.request(ApiKey.FETCH, 12, request)
    assert [data.error_code for data in response.responses[0].partitions] == [ErrorCode.none]
    assert world.log("t").latest_epoch == 0
    assert not world.disk.exists("t-0")
    world.produce("t", 0, batch())
    assert world.disk.read("t-0/leader-epoch-checkpoint", 0, 100) == b"0\n1\n0 0\n"
