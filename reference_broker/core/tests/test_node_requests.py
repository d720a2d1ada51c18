"""The node as a whole: dispatch, order and durability of answers, connections that go, determinism."""

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


def test_an_api_versions_request_of_an_unknown_version_gets_a_response_in_the_layout_of_version_0() -> None:
    world = NodeWorld()
    number = world.send(ApiKey.API_VERSIONS, 99, None)
    reply = world.replies[number]
    body: Any = reply.body
    assert (reply.api_version, body.error_code) == (0, ErrorCode.unsupported_version)
    assert [one.api_key for one in body.api_keys] == [ApiKey.API_VERSIONS]
    assert world.closed == {}


@pytest.mark.parametrize(("api_key", "version"), [(9999, 0), (ApiKey.PRODUCE, 2), (ApiKey.SHARE_FETCH, 1)])
def test_what_is_not_served_closes_its_connection_only(api_key: int, version: int) -> None:
    world = NodeWorld()
    number = world.send(api_key, version, object(), connection=5)
    assert number not in world.replies
    assert list(world.closed) == [5]
    assert "not served" in world.closed[5]
    assert world.create("t").error_code == 0


def test_a_produce_without_acks_is_done_without_a_response_and_an_error_closes_the_connection() -> None:
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, batch(), acks=0) is None
    assert world.log("t").log_end_offset == 1
    world.send(ApiKey.PRODUCE, 9, produce_request("nowhere", 0, batch(), acks=0), connection=8)
    assert world.closed == {8: "produce with acks=0 to nowhere-0: UNKNOWN_TOPIC_OR_PARTITION"}


def test_a_produce_waits_for_its_sync_if_the_flush_policy_says_so() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.hold_syncs = True
    first = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()))
    assert first not in world.replies
    second = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()), connection=2)
    world.complete_sync()
    assert first in world.replies
    assert second not in world.replies, "its bytes came after the sync began"
    world.complete_sync()
    assert second in world.replies


@pytest.mark.clause("P-6")
def test_a_duplicate_is_not_acknowledged_before_its_first_writing_is_durable() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.hold_syncs = True
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, sent_batch(7, 0)))
    world.close(1)
    retry = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, sent_batch(7, 0)), connection=2)
    assert retry not in world.replies
    world.complete_syncs()
    body: Any = world.replies[retry].body
    answer = body.responses[0].partitions[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
    again = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, sent_batch(7, 0)), connection=2)
    assert again in world.replies, "what is durable needs no sync"


def test_the_flush_policy_holds_for_writes_that_nobody_waits_for() -> None:
    world = NodeWorld(log_flush_interval_messages="3")
    world.create("t")
    for _ in range(10):
        world.produce("t", 0, batch(), acks=0)
    assert world.log("t").appended_since_sync < 3


def test_a_topic_has_its_own_flush_policy() -> None:
    world = NodeWorld()
    world.create("careful", flush_messages="1")
    world.create("timed", flush_ms="50")
    world.create("careless")
    world.hold_syncs = True
    for topic, answered in (("careful", False), ("timed", True), ("careless", True)):
        number = world.send(ApiKey.PRODUCE, 9, produce_request(topic, 0, batch()))
        assert (number in world.replies) is answered
    before = len(world.syncs)
    world.advance(49)
    assert len(world.syncs) == before
    world.advance(1)
    assert Sync(world.syncs[-1][0], world.log("timed").sync_point().paths) in world.effects


@pytest.mark.clause("P-5")
@pytest.mark.parametrize(("policy", "error"), [("reject", ErrorCode.unknown_producer_id), ("accept", ErrorCode.none)])
def test_the_policy_for_unknown_producers_reaches_the_log(policy: str, error: Error) -> None:
    world = NodeWorld(crucible_unknown_producer_id_policy=policy)
    world.create("t")
    assert world.produce("t", 0, sent_batch(7, 5)).error_code == error


@pytest.mark.clause("P-5")
def test_an_unknown_producer_goes_on_with_its_sequence_unless_a_policy_forbids_it() -> None:
    """KIP-360: in a partition without records, with other producers only, or emptied by DeleteRecords."""
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, sent_batch(7, 17)).error_code == ErrorCode.none
    assert world.produce("t", 0, sent_batch(8, 17)).error_code == ErrorCode.none
    world.log("t").delete_records_before(2)
    assert world.produce("t", 0, sent_batch(9, 17)).error_code == ErrorCode.none
    assert world.produce("t", 0, sent_batch(8, 19)).error_code == ErrorCode.out_of_order_sequence_number, "it is known"


@pytest.mark.clause("P-7", "UnifiedLogTest.testPeriodicProducerIdExpiration")
def test_the_expiration_of_producers_reaches_the_log() -> None:
    world = NodeWorld(producer_id_expiration_ms="1000", producer_id_expiration_check_interval_ms="100")
    world.create("t")
    world.produce("t", 0, sent_batch(7, 0))
    world.advance(900)
    assert 7 in world.log("t").producers.by_id
    world.advance(300)
    assert world.log("t").producers.by_id == {}


def test_a_transactional_batch_without_a_transactional_id_is_refused() -> None:
    """Else a transaction would open that nobody can end, and readers of committed records would wait for ever."""
    world = NodeWorld()
    world.create("t")
    record = Record(timestamp_ms=world.now.wall_ms, value=b"v")
    data = build([record], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert world.produce("t", 0, data).error_code == ErrorCode.transactional_id_authorization_failed
    assert world.log("t").log_end_offset == 0


def test_a_closed_connection_forgets_its_parked_fetch() -> None:
    world = NodeWorld()
    world.create("t")
    number = world.send(ApiKey.FETCH, 12, fetch_request("t", max_wait_ms=10_000), connection=3)
    assert number not in world.replies
    world.close(3)
    world.produce("t", 0, batch())
    world.advance(20_000)
    assert number not in world.replies


def test_a_parked_fetch_is_completed_by_the_produce_that_it_waits_for() -> None:
    world = NodeWorld()
    world.create("t")
    number = world.send(ApiKey.FETCH, 12, fetch_request("t", max_wait_ms=10_000), connection=3)
    assert number not in world.replies
    world.produce("t", 0, batch())
    assert number in world.replies


def test_timers_of_completed_fetches_do_not_pile_up_in_the_driver() -> None:
    """A client that asks for a wait of weeks and is answered at once leaves nothing behind for weeks."""
    world = NodeWorld()
    world.create("t")
    for offset in range(50):
        world.send(ApiKey.FETCH, 12, fetch_request("t", offset=offset, max_wait_ms=2**31 - 1), connection=3)
        world.produce("t", 0, batch())
    world.advance(60_000)
    assert len(world.timers) < 20


def test_a_failed_sync_ends_the_node() -> None:
    world = NodeWorld(log_flush_interval_messages="1")
    world.create("t")
    world.hold_syncs = True
    number = world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()))
    with pytest.raises(NodeFailed, match="input/output"):
        world.give(SyncFailed(world.syncs[0][0], "input/output error"))
    assert number not in world.replies


def test_a_disk_that_fails_where_nobody_can_be_told_ends_the_node_in_one_sentence() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk)
    world.create("t")
    world.produce("t", 0, batch())
    world.hold_syncs = True
    world.send(ApiKey.DELETE_TOPICS, 6, delete_request("t"))
    disk.fail_after = 0
    with pytest.raises(NodeFailed, match="made to fail"):
        world.complete_syncs()


def test_housekeeping_goes_on_where_the_disk_is_full() -> None:
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


def test_a_full_disk_is_an_error_in_the_response_and_no_end() -> None:
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
def test_other_acks_are_refused(acks: int) -> None:
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, batch(), acks=acks).error_code == ErrorCode.invalid_required_acks
    assert world.log("t").log_end_offset == 0


@pytest.mark.clause("LogValidatorTest.checkOnlyOneBatch")
def test_a_partition_gets_one_batch_at_a_time() -> None:
    world = NodeWorld()
    world.create("t")
    assert world.produce("t", 0, batch() + batch()).error_code == ErrorCode.invalid_record
    assert world.log("t").log_end_offset == 0


def test_one_refused_partition_does_not_stop_the_others() -> None:
    world = NodeWorld()
    world.create("t", 3)
    garbage = b"garbage, and more than a header of it" * 3
    parts = [produce_request("t", *part) for part in ((0, garbage), (1, batch()), (7, batch()), (2, None))]
    body = replace(parts[0], topics=[topic for part in parts for topic in part.topics])
    answer = world.ask(ApiKey.PRODUCE, 9, body)
    codes = [partition.error_code for topic in answer.responses for partition in topic.partitions]
    assert codes[1:] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_record]
    assert codes[0] in (ErrorCode.corrupt_message, ErrorCode.invalid_record)


@pytest.mark.parametrize("earlier", [batch(b"earlier"), b"", None])
@pytest.mark.parametrize("in_one_topic", [True, False])
def test_of_a_partition_that_is_named_twice_the_last_batch_is_written(
    earlier: bytes | None, in_one_topic: bool
) -> None:
    world = NodeWorld()
    world.create("t", 2)
    named = [(0, earlier), (1, batch(b"other")), (0, batch(b"last"))]
    topics = [topic for index, data in named for topic in produce_request("t", index, data).topics]
    if in_one_topic:
        topics = [replace(topics[0], partitions=[one for topic in topics for one in topic.partitions])]
    (answer,) = world.ask(ApiKey.PRODUCE, 9, replace(produce_request("t", 0, None), topics=topics)).responses
    results = {each.partition: (each.error_code, each.base_offset) for each in answer.partitions}
    assert results == {0: (ErrorCode.none, 0), 1: (ErrorCode.none, 0)}
    assert len(answer.partitions) == 2
    assert world.log("t").read(0, 1 << 20, 9, at_least_one=True).count(b"last") == 1
    assert world.log("t").log_end_offset == 1


def test_a_topic_without_partitions_is_not_in_the_response_to_a_produce() -> None:
    world = NodeWorld()
    world.create("t")
    whole = produce_request("t", 0, batch())
    empty = [replace(topic, partitions=[]) for topic in whole.topics]
    assert world.ask(ApiKey.PRODUCE, 9, replace(whole, topics=empty)).responses == []
    (answer,) = world.ask(ApiKey.PRODUCE, 9, replace(whole, topics=[*empty, *whole.topics])).responses
    assert [each.base_offset for each in answer.partitions] == [0]


def test_the_same_events_give_the_same_effects() -> None:
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


def test_no_producer_id_is_given_twice_also_across_restarts() -> None:
    disk = MemoryDisk()
    given = []
    for seed in range(3):
        world = NodeWorld(disk, seed=seed)
        given += [world.producer_id() for _ in range(3)]
    assert len(dict.fromkeys(given)) == 9


def test_requests_that_wait_for_a_block_of_producer_ids_get_responses_when_it_is_durable() -> None:
    world = NodeWorld()
    world.hold_syncs = True
    body = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))  # type: ignore[arg-type]
    numbers = [world.send(ApiKey.INIT_PRODUCER_ID, 4, body, connection) for connection in range(5)]
    assert not any(number in world.replies for number in numbers)
    world.complete_syncs()
    replies: list[Any] = [world.replies[number] for number in numbers]
    assert all(isinstance(reply, Reply) for reply in replies)
    assert [reply.body.producer_id for reply in replies] == [0, 1, 2, 3, 4]


def test_a_topic_is_not_told_of_before_it_is_durable() -> None:
    world = NodeWorld()
    world.hold_syncs = True
    number = world.send(ApiKey.CREATE_TOPICS, 7, create_request("t"))
    assert number not in world.replies
    assert world.node.broker.metadata.topics == {}
    world.complete_syncs()
    assert number in world.replies
    assert list(world.node.broker.metadata.topics) == ["t"]


@pytest.mark.clause("F-13")
def test_a_partition_that_never_held_a_record_knows_its_leader_epoch_without_a_file() -> None:
    world = NodeWorld()
    world.create("t")
    request: Any = fetch_request("t", max_wait_ms=0)  # Only mypy takes the fields as frozen.
    request.topics[0].partitions[0].last_fetched_epoch = 0
    answer = world.ask(ApiKey.FETCH, 12, request)
    assert [data.error_code for data in answer.responses[0].partitions] == [0]
    assert world.log("t").latest_epoch == 0
    assert not world.disk.exists("t-0")
    world.produce("t", 0, batch())
    assert world.disk.read("t-0/leader-epoch-checkpoint", 0, 100) == b"0\n1\n0 0\n"
