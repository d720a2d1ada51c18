"""The metadata epoch on whole nodes: the controller commits one for each change, each broker returns its own."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i32Timedelta

from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate
from reference_broker.client.offset_commits import CommittedOffset, may_consume
from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.core.tests.node_world import NodeWorld, create_request, delete_request
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import FULL_UPDATE, MetadataResponse1000
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.retired_fields import MetadataRequest


def cluster(level: int = 1, **config: str) -> ClusterWorld:
    world = ClusterWorld(3, crucible_bootstrap_metadata_epoch=str(level), **config)
    world.ready()
    return world


def epoch(world: ClusterWorld, number: int) -> int:
    return world.members[number].node.broker.metadata.metadata_epoch


def epochs(world: ClusterWorld) -> list[int]:
    return [epoch(world, number) for number, member in world.members.items() if member.alive]


def active(world: ClusterWorld, other_than: int = -1) -> int:
    """Return the active controller. One that is cut off may still believe to be it."""
    return next(
        number
        for number, member in world.members.items()
        if member.alive and number != other_than and member.node.broker.controller.is_active
    )


def image(world: ClusterWorld) -> MetadataImage:
    return world.members[world.controller].node.broker.loader.image


def agreed(world: ClusterWorld) -> None:
    """Wait until all live nodes have the newest epoch, with the content of the image."""

    def is_agreed() -> bool:
        active = [each.node.broker.controller.is_active for each in world.living]
        return (
            sum(active) == 1
            and epochs(world) == [image(world).metadata_epoch] * len(world.living)
            and all(is_current(world, number) for number, member in world.members.items() if member.alive)
        )

    world.run_until(is_agreed)


def is_current(world: ClusterWorld, number: int) -> bool:
    """Return whether a broker's metadata equals the image."""
    cache, truth = world.members[number].node.broker.metadata, image(world)
    described = {
        name: (
            topic.topic_id,
            [(partition.leader, partition.leader_epoch, partition.isr) for partition in topic.partitions],
        )
        for name, topic in cache.topics.items()
    }
    wanted = {
        name: (
            topic.topic_id,
            [(partition.leader, partition.leader_epoch, partition.isr) for partition in topic.partitions],
        )
        for name, topic in truth.topics.items()
    }
    live = [broker_id for broker_id, broker in sorted(truth.brokers.items()) if not broker.fenced]
    return described == wanted and [broker.broker_id for broker in cache.live_brokers()] == live


def metadata_of(world: ClusterWorld, number: int) -> Any:
    body = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    return world.request(number, ApiKey.METADATA, 1000, body)


def updates(world: ClusterWorld) -> list[tuple[int, Any]]:
    return [(here, send) for here, send in world.sends if send.api_key == ApiKey.UPDATE_METADATA]


def finalize(world: ClusterWorld, level: int, upgrade_type: int = 1) -> Any:
    key = FeatureUpdateKey(feature=METADATA_EPOCH_FEATURE, max_version_level=i16(level), upgrade_type=i8(upgrade_type))
    body = UpdateFeaturesRequest(timeout=i32Timedelta.parse(timedelta(seconds=5)), feature_updates=(key,))
    return world.request(world.controller, ApiKey.UPDATE_FEATURES, 2, body)


def notes_of(world: ClusterWorld, number: int, what: str) -> list[dict[str, int | str]]:
    return [dict(note.fields) for note in world.members[number].notes if note.what == what]


@pytest.mark.clause("M-2")
@pytest.mark.clause("M-4")
def test_each_visible_change_gets_next_epoch_on_every_broker() -> None:
    world = cluster()
    agreed(world)
    before = epoch(world, 0)
    assert before >= 1
    world.create("t", 3)
    agreed(world)
    assert epochs(world) == [before + 1] * 3
    for number in world.members:
        response = metadata_of(world, number)
        assert isinstance(response, MetadataResponse1000)
        assert (response.metadata_epoch, response.controller_id) == (before + 1, world.controller)
        assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("t", 3)]
    world.run(2000)
    assert epochs(world) == [before + 1] * 3  # The record of the epoch itself caused no other one.


@pytest.mark.clause("M-3")
def test_topic_deletion_is_sent_as_incremental_update() -> None:
    world = cluster()
    for name in ("kept", "gone"):
        world.create(name, 2)
    agreed(world)
    world.sends.clear()
    world.request(world.controller, ApiKey.DELETE_TOPICS, 6, delete_request("gone"))
    agreed(world)
    sent = [send.body for _, send in updates(world)]
    assert len(sent) == 2  # To two other brokers; it updates itself directly.
    for body in sent:
        assert [(state.topic, state.partition, state.leader) for state in body.partition_states] == [
            ("gone", 0, -2),
            ("gone", 1, -2),
        ]
        assert len(body.live_brokers) == 3
    assert all(send.channel is Channel.METADATA for _, send in updates(world))


@pytest.mark.clause("M-2")
def test_epoch_is_committed_before_sent_and_has_one_content() -> None:
    world = cluster()
    for number in range(4):
        world.create(f"t{number}")
        if number == 1:
            world.kill(world.controller)
            world.run_until(lambda: any(each.node.broker.controller.is_active for each in world.living))
    world.run(3000)
    agreed(world)
    written = world.notes("metadata_epoch")
    numbers = [int(note["epoch"]) for note in written]
    assert len(set(numbers)) == len(numbers)  # Never repeated, by either controller.
    contents: dict[tuple[int, int], set[str]] = {}
    for here, send in updates(world):
        body = send.body
        assert any(note["epoch"] == body.metadata_epoch for note in written)
        if body.type == FULL_UPDATE:
            content = repr((body.partition_states, body.live_brokers))
            contents.setdefault((body.metadata_epoch, here), set()).add(content)
    assert contents
    assert all(len(found) == 1 for found in contents.values())
    assert len({number for number, _ in contents}) == len(contents)


@pytest.mark.clause("M-3")
def test_isolated_broker_keeps_old_epoch_and_delays_no_other() -> None:
    world = cluster(broker_session_timeout_ms="60000")
    world.create("t")
    agreed(world)
    cut = next(number for number in world.members if number != world.controller)
    old = epoch(world, cut)
    for member in world.members:
        if member != cut:
            world.sever(cut, member)
    world.request(active(world, cut), ApiKey.CREATE_TOPICS, 7, create_request("new"))
    others = [number for number in world.members if number != cut]
    world.run_until(lambda: all(epoch(world, number) > old and is_current(world, number) for number in others), 2000)
    assert epoch(world, cut) == old
    assert metadata_of(world, cut).metadata_epoch == old
    world.heal()
    agreed(world)


@pytest.mark.clause("M-2")
@pytest.mark.clause("M-3")
@pytest.mark.parametrize("committed", [False, True])
def test_epoch_of_dead_controller_is_not_reused_with_other_content(committed: bool) -> None:
    world = cluster(broker_session_timeout_ms="20000")
    world.create("t")
    agreed(world)
    first, old = world.controller, epoch(world, 0)
    others = [number for number in world.members if number != first]
    world.send(first, ApiKey.CREATE_TOPICS, 7, create_request("new"))
    broker = world.members[first].node.broker
    if committed:
        world.run_until(lambda: broker.loader.image.metadata_epoch > old)
    else:
        world.run_until(lambda: broker.controller.latest.metadata_epoch > old)
    assert [epoch(world, number) for number in others] == [old, old]
    world.kill(first)
    world.run_until(lambda: any(is_active(world, number) for number in others))
    agreed(world)
    first_of_the_next = min(int(note["epoch"]) for note in notes_of(world, world.controller, "metadata_epoch"))
    assert first_of_the_next == old + 1 + committed
    world.start(first)
    world.ready()
    agreed(world)


def is_active(world: ClusterWorld, number: int) -> bool:
    return world.members[number].node.broker.controller.is_active


@pytest.mark.clause("M-3")
def test_restarted_broker_has_epoch_minus_one_until_full_update() -> None:
    world = cluster()
    world.create("t", 2)
    agreed(world)
    number = next(member for member in world.members if member != world.controller)
    world.kill(number)
    world.run(500)
    world.sends.clear()
    world.start(number)
    assert epoch(world, number) == -1
    world.ready()
    agreed(world)
    registered = world.members[number].node.broker.lifecycle.registered_epoch
    sent = [send.body for _, send in updates(world) if send.peer == number and send.body.broker_epoch == registered]
    assert sent[0].type == FULL_UPDATE
    assert len(sent[0].partition_states) == 2


@pytest.mark.clause("M-14")
def test_level_zero_sends_no_updates_and_brokers_use_their_image() -> None:
    world = cluster(level=0)
    world.create("t")
    world.run(500)
    assert updates(world) == []
    assert image(world).metadata_epoch == 0
    assert [metadata_of(world, number).metadata_epoch for number in world.members] == [-1] * 3
    assert all(is_current(world, number) for number in world.members)


@pytest.mark.clause("M-14")
def test_feature_is_enabled_disabled_and_enabled_in_running_cluster() -> None:
    world = cluster(level=0)
    world.create("t")
    assert finalize(world, 1).error_code == ErrorCode.none
    agreed(world)
    on = epoch(world, 0)
    assert on >= 1
    assert (
        finalize(world, 0, upgrade_type=1).error_code == ErrorCode.invalid_update_version
    )  # Not without a downgrade type.
    assert finalize(world, 0, upgrade_type=2).error_code == ErrorCode.none
    world.run_until(lambda: epochs(world) == [-1] * 3)
    world.sends.clear()
    world.create("u")
    assert all(is_current(world, number) for number in world.members)
    assert updates(world) == []
    assert finalize(world, 1).error_code == ErrorCode.none
    agreed(world)
    assert epoch(world, 0) > on


def learnt(client: MetadataCache, response: Any) -> MetadataCache:
    """Return the client's cache after the response, which it must accept."""
    update = MetadataUpdate.of(response)
    assert client.accepts(update), f"a client with epoch {client.metadata_epoch} drops {update.metadata_epoch}"
    return client.apply(update)


@pytest.mark.clause("M-5", "M-9", "M-10", "M-14")
def test_clients_with_epoch_survive_disabling_and_enabling() -> None:
    world = cluster()
    world.create("t")
    agreed(world)
    on = epoch(world, 0)
    running = learnt(MetadataCache(), metadata_of(world, 0))
    assert running.metadata_epoch == on
    assert finalize(world, 0, upgrade_type=2).error_code == ErrorCode.none
    world.create("u")
    world.run_until(lambda: all(is_current(world, number) for number in world.members))
    for number in world.members:
        running = learnt(running, metadata_of(world, number))
        fresh = learnt(MetadataCache(), metadata_of(world, number))
        assert "u" in running.topics
        assert may_consume(fresh.metadata_epoch, [CommittedOffset(7, metadata_epoch=on)])
    for number in world.members:
        world.kill(number)
    for number in list(world.members):
        world.start(number)
    world.ready()
    for number in world.members:
        running = learnt(running, metadata_of(world, number))
    assert finalize(world, 1).error_code == ErrorCode.none
    agreed(world)
    assert learnt(running, metadata_of(world, 0)).metadata_epoch > on


@pytest.mark.clause("M-14")
def test_enabling_is_rejected_while_registered_broker_lacks_feature() -> None:
    world = cluster(level=0)
    number = next(member for member in world.members if member != world.controller)
    world.kill(number)
    world.start(number, crucible_metadata_epoch_enable="false")
    world.ready()
    assert finalize(world, 1).error_code == ErrorCode.invalid_update_version
    world.kill(number)
    world.start(number)
    world.ready()
    assert finalize(world, 1).error_code == ErrorCode.none
    agreed(world)
    world.kill(number)
    world.run(2000)
    world.start(number, crucible_metadata_epoch_enable="false")
    world.run(2000)
    assert not world.members[number].node.ready  # Its registration is refused.
    assert {note["error"] for note in notes_of(world, number, "registration_refused")} == {
        ErrorCode.unsupported_version
    }


@pytest.mark.clause("M-2")
def test_no_epoch_within_metadata_transaction_and_one_after_it() -> None:
    world = cluster(crucible_metadata_batch_max_bytes="512")
    agreed(world)
    before = epoch(world, 0)
    number = next(member for member in world.members if member != world.controller)
    world.shut_down(number)
    world.send(world.controller, ApiKey.CREATE_TOPICS, 7, create_request("large", 60))
    world.start(number)
    world.ready()
    agreed(world)
    inside, seen = False, 0
    for note in world.members[world.controller].notes:
        fields = dict(note.fields)
        if note.what == "metadata_appended":
            inside = fields["kind"] in ("begin", "batch")
            seen += fields["kind"] == "begin"
            assert not (inside and fields["kind"] == "single")
        elif note.what in ("metadata_epoch", "update_metadata_sent"):
            assert not inside
    assert seen >= 1
    assert epoch(world, 0) > before


@pytest.mark.clause("M-1")
def test_node_started_from_snapshot_has_epoch() -> None:
    world = cluster(metadata_log_max_record_bytes_between_snapshots="1024")
    for number in range(6):
        world.create(f"t{number}")
    agreed(world)
    newest = max(epochs(world))
    for number in list(world.members):
        assert world.members[number].node.broker.snapshots.latest is not None
        world.kill(number)
    for number in range(3):
        world.start(number)
    world.ready()
    agreed(world)
    assert epoch(world, 0) > newest


@pytest.mark.clause("D-3")
@pytest.mark.clause("M-14")
def test_node_with_disabled_epoch_serves_no_drafts() -> None:
    body = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    on = NodeWorld()
    assert on.request(ApiKey.METADATA, 1000, body).metadata_epoch == -1
    off = NodeWorld(crucible_metadata_epoch_enable="false")
    token = off.send(ApiKey.METADATA, 1000, body)
    off.settle()
    assert "is not served" in off.closed[1]
    assert token not in off.replies


@pytest.mark.clause("M-14")
def test_update_in_flight_at_disabling_is_discarded() -> None:
    world = cluster()
    world.create("t")
    agreed(world)
    number = next(member for member in world.members if member != world.controller)
    world.kill(number)
    world.slow[Channel.METADATA] = 800_000
    world.start(number)
    world.run_until(lambda: any(send.peer == number for _, send in updates(world)[-3:]))
    world.ready()
    assert finalize(world, 0, upgrade_type=2).error_code == ErrorCode.none
    world.run(3000)
    assert epochs(world) == [-1] * 3
    world.create("u")
    assert all(is_current(world, number) for number in world.members)
    world.slow.clear()
    assert finalize(world, 1).error_code == ErrorCode.none
    agreed(world)
