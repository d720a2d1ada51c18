"""The metadata epoch on the active controller: when it is written, which updates brokers are sent, and retries."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.controller.metadata_broadcast import MAX_REMEMBERED, Content, Frames
from reference_broker.metadata.cache import MetadataCache, refusal, update_from
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage
from reference_broker.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
)
from reference_broker.metadata.tests.metadata_world import ManualPorts, MetadataWorld, topic_id, topic_records
from reference_broker.metadata.tests.test_image_replay import OPERATIONS, Model
from reference_broker.ports.node_ports import Channel
from reference_broker.ports.slicing import PARTITION_STATES_PER_SLICE, run_to_end
from reference_broker.quorum.values import Provenance
from reference_broker.wire.drafts import (
    FULL_UPDATE,
    INCREMENTAL_UPDATE,
    UpdateMetadataRequest1001,
    UpdateMetadataResponse1000,
)
from reference_broker.wire.errors import Error, ErrorCode

SELF, OTHERS = 1, (2, 3)


def registration(broker_id: int, broker_epoch: int, fenced: bool = False) -> MetadataRecord:
    endpoint = BrokerEndpoint(name="PLAINTEXT", host=f"h{broker_id}", port=9092, security_protocol=0)
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=bytes([broker_epoch] * 16),
        broker_epoch=broker_epoch,
        end_points=(endpoint,),
        features=(),
        fenced=fenced,
    )


class BroadcastWorld(MetadataWorld):
    """Node 1 leads; brokers 1 to 3 are alive. Updates to itself complete at once."""

    def __init__(self, **config: Any) -> None:
        super().__init__(crucible_bootstrap_metadata_epoch="1", broker_session_timeout_ms="3600000", **config)
        self.own: list[UpdateMetadataRequest1001] = []
        self.controller.serve_locally = self._serve
        self.win()
        self.settle()

    def _serve(self, _api_key: int, body: Any, respond: Any) -> None:
        self.own.append(body)
        respond(UpdateMetadataResponse1000())

    def change(self, *records: MetadataRecord) -> None:
        for broker_id in (SELF, *OTHERS):
            self.controller.heartbeats.touch(broker_id)
        self.submit(lambda: records, lambda _: None)
        self.settle()

    def sent(self, broker_id: int) -> list[UpdateMetadataRequest1001]:
        """Return the requests in flight to the broker."""
        return [request[4] for request in self.ports.sent if request[0] == broker_id]

    def respond(self, broker_id: int, error: Error = ErrorCode.none) -> UpdateMetadataRequest1001:
        request = self._take(broker_id)
        request[6](UpdateMetadataResponse1000(error_code=error))
        self.settle()
        body = request[4]
        assert isinstance(body, UpdateMetadataRequest1001)
        return body

    def fail(self, broker_id: int) -> None:
        self._take(broker_id)[7]()

    def _take(self, broker_id: int) -> tuple[Any, ...]:
        request = next(request for request in self.ports.sent if request[0] == broker_id)
        self.ports.sent.remove(request)
        return request

    def later(self, milliseconds: int) -> None:
        self.ports.advance(milliseconds)
        self.settle()

    @property
    def epochs(self) -> list[int]:
        return [
            record.metadata_epoch.metadata_epoch
            for batch in self.log.content
            for record in batch.records
            if isinstance(record, NoOpRecord) and record.metadata_epoch is not None
        ]


@pytest.fixture
def world() -> BroadcastWorld:
    made = BroadcastWorld()
    made.change(*(registration(each, each) for each in (SELF, *OTHERS)))
    return made


@pytest.mark.clause("M-2")
@pytest.mark.clause("M-3")
def test_committed_epoch_is_sent_to_all_brokers_at_once(world: BroadcastWorld) -> None:
    newest = world.epochs[-1]
    assert world.epochs == list(range(1, newest + 1))
    for broker_id in OTHERS:
        (body,) = world.sent(broker_id)
        assert (body.metadata_epoch, body.controller_id, body.type) == (newest, SELF, FULL_UPDATE)
        assert (body.controller_epoch, body.broker_epoch) == (world.quorum.epoch, broker_id)
        assert [broker.id for broker in body.live_brokers] == [1, 2, 3]
    assert {request[1] for request in world.ports.sent} == {Channel.METADATA}
    assert world.own[-1].metadata_epoch == newest


@pytest.mark.clause("M-2")
def test_update_is_not_sent_before_its_epoch_is_committed(world: BroadcastWorld) -> None:
    for broker_id in OTHERS:
        world.respond(broker_id)
    world.submit(lambda: topic_records("t", topic_id(1)), lambda _: None)
    world.commit()
    assert len(world.epochs) == world.epochs[-1]
    assert not world.ports.sent  # The record is written and not committed.
    world.commit()
    assert [world.sent(broker_id)[0].metadata_epoch for broker_id in OTHERS] == [world.epochs[-1]] * 2


@pytest.mark.clause("M-2")
def test_only_changes_visible_to_clients_start_new_epoch(world: BroadcastWorld) -> None:
    count = len(world.epochs)
    world.change(ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1"))
    world.change(registration(4, 4, fenced=True))
    world.change(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, in_controlled_shutdown=1))
    world.change(NoOpRecord())
    assert len(world.epochs) == count
    world.change(BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=4, fenced=-1))
    assert len(world.epochs) == count + 1


@pytest.mark.clause("M-2")
def test_changes_during_pending_epoch_share_next_one(world: BroadcastWorld) -> None:
    count = len(world.epochs)
    for number in range(5):
        world.submit(lambda number=number: topic_records(f"t{number}", topic_id(number)), lambda _: None)  # type: ignore[misc]
    world.settle()
    assert len(world.epochs) <= count + 2


@pytest.mark.clause("M-3")
def test_unresponsive_broker_delays_no_other_and_gets_same_update_again(world: BroadcastWorld) -> None:
    lost = world.sent(3)[0]
    world.respond(2)
    world.fail(3)
    world.change(*topic_records("t", topic_id(1), 2))
    (body,) = world.sent(2)
    assert (body.type, [state.partition for state in body.partition_states]) == (INCREMENTAL_UPDATE, [0, 1])
    world.respond(2)
    assert world.sent(3) == []
    world.later(60)
    assert world.sent(3) == [lost]  # Whether it was applied is unknown.
    assert world.respond(3) == lost
    (body,) = world.sent(3)
    assert body.type == INCREMENTAL_UPDATE
    assert body.metadata_epoch == world.epochs[-1]
    assert len(body.partition_states) == 2


@pytest.mark.clause("M-3")
def test_retry_backoff_grows_to_limit_and_resets(world: BroadcastWorld) -> None:
    gaps = []
    for _ in range(8):
        world.fail(3)
        start = world.ports.now_us
        while not world.sent(3):
            world.later(5)
        gaps.append((world.ports.now_us - start) // 1000)
    assert gaps[0] <= 60
    assert max(gaps) <= 810
    assert gaps[-1] >= 400
    world.respond(3)
    world.change(*topic_records("t", topic_id(1)))
    assert len(world.sent(3)) == 1


@pytest.mark.clause("M-3")
def test_broker_rejecting_incremental_update_gets_full_update(world: BroadcastWorld) -> None:
    world.respond(3)
    world.change(*topic_records("t", topic_id(1)))
    world.respond(3, ErrorCode.invalid_request)
    world.later(60)
    (body,) = world.sent(3)
    assert (body.type, len(body.partition_states)) == (FULL_UPDATE, 1)


@pytest.mark.clause("M-3")
def test_new_incarnation_gets_full_update_and_fenced_broker_none(world: BroadcastWorld) -> None:
    world.respond(3)
    world.change(*topic_records("t", topic_id(1)))
    world.respond(3)
    world.change(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=1))
    assert world.sent(3) == []
    world.change(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=-1))
    (body,) = world.sent(3)
    assert (body.type, body.partition_states) == (INCREMENTAL_UPDATE, ())  # It is the same incarnation.
    world.respond(3)
    world.change(registration(3, 9))
    (body,) = world.sent(3)
    assert body.type == FULL_UPDATE
    assert body.broker_epoch == 9
    assert len(body.partition_states) == 1


@pytest.mark.clause("M-3")
def test_late_response_of_old_incarnation_is_ignored(world: BroadcastWorld) -> None:
    old = world._take(3)
    world.change(registration(3, 9))
    old[6](UpdateMetadataResponse1000())
    (body,) = world.sent(3)
    assert (body.type, body.broker_epoch) == (FULL_UPDATE, 9)


@pytest.mark.clause("M-3")
def test_deleted_topic_has_leader_minus_two_and_recreated_one_is_sent_whole(world: BroadcastWorld) -> None:
    world.change(*topic_records("t", topic_id(1), 2))
    world.respond(3)
    world.respond(3)
    world.change(RemoveTopicRecord(topic_id=topic_id(1)))
    (body,) = world.sent(3)
    assert [(state.partition, state.leader) for state in body.partition_states] == [(0, -2), (1, -2)]
    world.respond(3)
    world.change(*topic_records("t", topic_id(2), 3))
    (body,) = world.sent(3)
    assert [(state.partition, state.leader) for state in body.partition_states] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.clause("M-2")
def test_new_controller_continues_from_committed_epoch_with_full_update(world: BroadcastWorld) -> None:
    for broker_id in OTHERS:
        world.respond(broker_id)
    world.change(*topic_records("t", topic_id(1)))
    newest = world.epochs[-1]
    world.lose()
    world.cut()
    world.ports.sent.clear()
    world.win()
    world.settle()
    assert world.epochs[-1] == newest + 1
    assert len(set(world.epochs)) == len(world.epochs)
    for broker_id in OTHERS:
        (body,) = world.sent(broker_id)
        assert (body.metadata_epoch, body.type) == (newest + 1, FULL_UPDATE)
        assert body.controller_epoch == world.quorum.epoch


@pytest.mark.clause("M-2")
def test_uncommitted_epoch_is_not_sent_and_may_be_reused(world: BroadcastWorld) -> None:
    for broker_id in OTHERS:
        world.respond(broker_id)
    world.submit(lambda: topic_records("t", topic_id(1)), lambda _: None)
    world.commit()
    lost = world.epochs[-1]
    world.lose()
    world.cut()
    assert lost not in world.epochs
    assert not world.ports.sent
    world.win()
    world.settle()
    assert [world.sent(broker_id)[0].metadata_epoch for broker_id in OTHERS] == [lost] * 2


@pytest.mark.clause("M-2")
def test_no_epoch_is_written_or_sent_within_transaction() -> None:
    world = BroadcastWorld(crucible_metadata_batch_max_bytes="300")
    world.change(*(registration(each, each) for each in (SELF, *OTHERS)))
    world.respond(2)
    begin_transaction(world)
    world.fail(3)
    open_events = 0
    while world.controller.is_writing_transaction:
        before = len(world.ports.sent), len(world.epochs)
        world.ports.now_us += 200_000  # The time of the retry comes.
        world.ports.step()
        if world.controller.is_writing_transaction:
            open_events += 1
            assert (len(world.ports.sent), len(world.epochs)) == before
    assert open_events > 3
    world.settle()
    kinds = world.kinds()
    inside = world.log.content[_last(kinds, "begin") : _last(kinds, "end")]
    assert not [record for batch in inside for record in batch.records if isinstance(record, NoOpRecord)]
    assert len(world.sent(2)[0].partition_states) == 40
    assert world.sent(3)  # It was retried after the transaction.


@pytest.mark.clause("M-2")
def test_update_delayed_by_transaction_is_sent_after_abort() -> None:
    world = BroadcastWorld(crucible_metadata_batch_max_bytes="300")
    world.change(*(registration(each, each) for each in (SELF, *OTHERS)))
    begin_transaction(world)
    world.fail(3)
    world.quorum.fail_in, world.quorum.failing = 2, 1
    world.ports.now_us += 200_000
    world.settle()
    assert world.kinds()[-1] == "abort"
    assert len(world.sent(3)) == 1


@pytest.mark.clause("M-2")
def test_controllers_own_update_is_applied_in_same_event() -> None:
    """In a later event a transaction may be open."""
    world = BroadcastWorld()
    world.submit(lambda: [registration(each, each) for each in (SELF, *OTHERS)], lambda _: None)
    for _ in range(50):
        world.ports.step()
        world.loader.catch_up(world.log.end.offset)
        noted = [fields["epoch"] for fields in world.ports.notes_of("update_metadata_sent") if fields["broker"] == SELF]
        assert [body.metadata_epoch for body in world.own] == noted
    assert world.own


def begin_transaction(world: BroadcastWorld) -> None:
    world.submit(lambda: topic_records("large", topic_id(1), 40), lambda _: None)
    while not world.controller.is_writing_transaction:
        world.ports.step()


def _last(kinds: list[str], kind: str) -> int:
    return len(kinds) - 1 - kinds[::-1].index(kind)


@pytest.mark.clause("M-14")
def test_disabling_stops_updates_and_enabling_sends_full_updates(world: BroadcastWorld) -> None:
    for broker_id in OTHERS:
        world.respond(broker_id)
    world.change(FeatureLevelRecord(name=METADATA_EPOCH_FEATURE, feature_level=0))
    count = len(world.epochs)
    world.change(*topic_records("t", topic_id(1)))
    assert (len(world.epochs), world.ports.sent) == (count, [])
    world.change(FeatureLevelRecord(name=METADATA_EPOCH_FEATURE, feature_level=1))
    assert len(world.epochs) == count + 1
    assert [world.sent(broker_id)[0].type for broker_id in OTHERS] == [FULL_UPDATE] * 2


@pytest.mark.clause("M-2")
def test_epoch_content_is_image_at_its_record(world: BroadcastWorld) -> None:
    for broker_id in OTHERS:
        world.respond(broker_id)
    world.submit(lambda: topic_records("t", topic_id(1)), lambda _: None)
    world.commit()
    world.submit(lambda: topic_records("u", topic_id(2)), lambda _: None)
    world.loader.catch_up(world.log.end.offset)  # The epoch's record and the next change, in one slice.
    (body,) = world.sent(2)
    assert [state.topic for state in body.partition_states] == ["t"]
    world.settle()
    world.respond(2)
    assert [state.topic for state in world.sent(2)[0].partition_states] == ["u"]


def test_large_update_is_built_in_slices() -> None:
    world = BroadcastWorld()
    for number in range(20):
        world.change(*topic_records(f"t{number}", topic_id(number), 200))
    before = world.ports.events
    world.change(*(registration(each, each) for each in (SELF, *OTHERS)))
    assert len(world.sent(2)[0].partition_states) == 4000
    assert world.sent(2)[0].partition_states is world.sent(3)[0].partition_states  # Made once.
    assert world.ports.events - before >= 4000 // PARTITION_STATES_PER_SLICE


def test_unchanged_partitions_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a topic of 10,000 that would take 5 ms, for each epoch and in one event."""
    world = BroadcastWorld()
    world.change(*topic_records("large", topic_id(1), 300))
    before = world.controller.image
    world.change(PartitionChangeRecord(topic_id=topic_id(1), partition_id=7, leader=-1))
    compared: list[Any] = []
    equal = PartitionImage.__eq__

    def noted(image: PartitionImage, other: object) -> bool:
        compared.append(image)
        return equal(image, other)

    monkeypatch.setattr(PartitionImage, "__eq__", noted)
    base, target = Content(1, 1, before, ()), Content(2, 1, world.controller.image, ("large",))
    (state,) = made(Frames(ManualPorts()), base, target)
    assert (state.partition, state.leader) == (7, -1)
    assert len(compared) == 1


def made(frames: Frames, base: Content | None, target: Content) -> Any:
    found: list[Any] = []
    frames.make(base, target, found.append)
    ports = frames.ports
    assert isinstance(ports, ManualPorts)
    ports.run()
    return found[0]


@pytest.mark.clause("M-3")
@given(OPERATIONS, st.integers(0, 2**32), st.sampled_from((2, MAX_REMEMBERED)))
def test_cache_equals_image_after_any_missed_updates(
    operations: list[tuple[str, int]], seed: int, remembered: int
) -> None:
    model, random, image = Model(), Random(seed), EMPTY_IMAGE
    frames, cache, known = Frames(ManualPorts()), MetadataCache(), None
    frames.history = type(frames.history)(maxlen=remembered)
    for epoch, (operation, number) in enumerate(operations, 1):
        delta = MetadataDelta(image)
        for record in model.records(operation, number):
            replay(delta, record)
        image = delta.build(Provenance(epoch, 1, 0))
        names = [(change.after or change.before).name for change in delta.topics]  # type: ignore[union-attr]
        content = Content(epoch, 1, image, tuple(dict.fromkeys(names)))
        frames.remember(content)
        if random.random() < 0.4:
            continue  # It was cut off.
        body = UpdateMetadataRequest1001(
            controller_id=1,
            controller_epoch=1,
            metadata_epoch=epoch,
            partition_states=made(frames, known, content),
            live_brokers=(),
            broker_epoch=3,
            type=FULL_UPDATE if known is None else INCREMENTAL_UPDATE,
        )
        assert refusal(body, cache, 3) is ErrorCode.none
        update = run_to_end(update_from(body, cache))
        assert update is not None
        cache, known = cache.apply(update), content
        assert contents(cache) == contents(image)
        assert {topic.topic_id: name for name, topic in cache.topics.items()} == cache.topic_names


def contents(known: MetadataCache | MetadataImage) -> Any:
    return {
        name: (topic.topic_id, [(partition.leader, partition.leader_epoch) for partition in topic.partitions])
        for name, topic in known.topics.items()
    }
