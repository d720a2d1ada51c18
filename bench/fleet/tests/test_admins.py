"""Admins against a quorum of three: one effect for each request, whatever happens to its attempts."""

import json
import uuid
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.admin import FIRST_VALUE, LOADED_SETTINGS, Admin, LoadedTopic, set_of
from bench.fleet.fleet import make_fleet
from bench.fleet.spec import FleetSpec, SpecError, parse_spec
from bench.fleet.tests.cluster import ADDRESSES, FakeQuorum, Made, QuorumWorld
from reference_broker.configuration.setting import WITHOUT_EFFECT
from reference_broker.configuration.topic_config import TOPIC_KEYS, normalised
from reference_broker.wire.apis import ApiKey
from reports.rows import ChangeRow, OperationRow
from scenarios.load import Admins, Load

BOOTSTRAP = [f"{address.host}:{address.port}" for address in ADDRESSES]


def admin(mix: dict[str, int] | None = None, rate_per_s: float = 2, **more: Any) -> Admin:
    """``more``: what its plan says that no load says."""
    weights = tuple((mix or {"create": 1}).items())
    admins = Admins(rate_per_s=rate_per_s, mix=weights, partitions=4, topics_per_request=3)
    made = make_fleet(FleetSpec(BOOTSTRAP, Load(seconds=1, admins=(admins,)))).admins[0]
    return Admin(replace(made.plan, **more), made.settings, Random(1))


@pytest.fixture
def quorum() -> FakeQuorum:
    return FakeQuorum()


@pytest.fixture
def world(quorum: FakeQuorum) -> QuorumWorld:
    return QuorumWorld(quorum)


def played(world: QuorumWorld, behaviour: Admin, seconds: float = 5) -> list[OperationRow]:
    world.start(behaviour)
    world.run(seconds)
    world.stop(behaviour)
    world.run(60)
    assert behaviour.process in world.finished
    return [row for row in world.rows("operations") if row.f not in ("connect", "metadata") and row.node >= 0]


def test_topic_names_contain_set_and_are_unique(world: QuorumWorld, quorum: FakeQuorum) -> None:
    operations = played(world, admin())
    assert {operation.type for operation in operations} == {"ok"}
    sets = {set_of("made", name) for name in quorum.topics}
    assert len(sets) == len(operations) >= 8
    assert {(each.topics, each.partitions) for each in sets if each} == {(3, 4)}
    assert sorted(name for each in sets if each for name in each.topic_names) == sorted(quorum.topics)
    assert set_of("made", "hot") is None
    assert set_of("other", next(iter(quorum.topics))) is None


def test_lost_response_is_retried_with_same_names_and_counts_once(world: QuorumWorld, quorum: FakeQuorum) -> None:
    lost = iter([True])
    world.fault = lambda each: "lose_response" if each.api_key == ApiKey.CREATE_TOPICS and next(lost, False) else None
    operations = played(world, admin())
    assert {operation.type for operation in operations} == {"ok"}
    assert quorum.created == 3 * len(operations)
    retried = [row for row in world.rows("changes") if row.attempts == 2]
    assert [(row.type, row.error) for row in retried] == [("ok", "TOPIC_ALREADY_EXISTS")] * 3
    assert len({row.topic_set for row in retried}) == 1


def test_topic_that_exists_without_an_earlier_attempt_is_no_success(world: QuorumWorld, quorum: FakeQuorum) -> None:
    behaviour = admin()
    quorum.create(bodies.create_topics_request([bodies.new_topic("made.admin-0.1.0of3.p4", 4, 1, {})], 1000), None)
    operations = played(world, behaviour)
    assert (operations[0].type, operations[0].error) == ("fail", "TOPIC_ALREADY_EXISTS")
    assert [row.type for row in world.rows("changes")[:3]] == ["fail", "ok", "ok"]


def test_new_controller_is_found_after_not_controller(world: QuorumWorld, quorum: FakeQuorum) -> None:
    behaviour = admin()
    world.start(behaviour)
    world.run(2)
    quorum.controller = 2
    world.run(3)
    world.stop(behaviour)
    world.run(10)
    created = [(node, each.api_key) for node, each in quorum.requests if each.api_key == ApiKey.CREATE_TOPICS]
    assert [node for node, _ in created].count(2) >= 5
    assert sum(node == 0 for node, _ in created[-5:]) == 0
    assert {row.type for row in world.rows("operations") if row.f == "create_topics"} == {"ok"}


def test_dead_controller_makes_an_admin_wait_and_catch_up(world: QuorumWorld, quorum: FakeQuorum) -> None:
    behaviour = admin()
    world.start(behaviour)
    world.run(2)
    world.down.add(0)
    world.run(2)
    quorum.controller = 1
    world.run(2)
    world.stop(behaviour)
    world.run(10)
    operations = [row for row in world.rows("operations") if row.f == "create_topics"]
    assert {operation.type for operation in operations} == {"ok"}
    assert max(operation.complete_us - operation.intended_us for operation in operations) > 1_500_000
    assert len(operations) >= 11


def test_unknown_at_deadline_is_info_and_unsent_is_fail(world: QuorumWorld) -> None:
    world.fault = lambda each: "lose_response" if each.api_key == ApiKey.CREATE_TOPICS else None
    operations = played(world, admin(deadline_us=2_000_000, rate_per_s=0.1), 30)
    assert {operation.type for operation in operations} == {"info"}
    assert {row.type for row in world.rows("changes")} == {"info"}
    unreachable = QuorumWorld(FakeQuorum())
    unreachable.down |= {0, 1, 2}
    played(unreachable, admin(deadline_us=2_000_000, rate_per_s=0.1), 30)
    operations = [row for row in unreachable.rows("operations") if row.f == "create_topics"]
    assert {(operation.type, operation.error) for operation in operations} == {("fail", "not_sent")}


def test_sets_of_uncertain_origin_are_never_deleted(world: QuorumWorld, quorum: FakeQuorum) -> None:
    lost = iter(range(10**6))
    world.fault = lambda _: "lose_response" if next(lost) % 11 == 0 else None
    played(world, admin({"create": 2, "delete": 2}, 5), 60)
    created = {row.topic_set: row.attempts for row in world.rows("changes") if row.change == "create"}
    deleted = {row.topic_set for row in world.rows("changes") if row.change == "delete"}
    assert deleted
    assert {created[name] for name in deleted} == {1}
    assert any(attempts > 1 for attempts in created.values())
    left = {name for name in created if name not in deleted}
    assert {f"{name.rsplit('.', 2)[0]}" for name in quorum.topics} == left


def test_each_configuration_names_its_request(world: QuorumWorld, quorum: FakeQuorum) -> None:
    played(world, admin({"create": 1, "configure": 3}), 10)
    rows = [row for row in world.rows("changes") if row.change == "configure"]
    assert len({row.value for row in rows}) == len({row.index for row in rows}) >= 5
    last = {row.topic: row.value for row in rows}
    assert min(last.values()) >= FIRST_VALUE
    for topic, value in last.items():
        assert quorum.topics[topic].config == {"retention.ms": str(value)}


def loaded_admin(operation: str, rate_per_s: float) -> Admin:
    return admin({operation: 1}, rate_per_s, loaded=(LoadedTopic("hot", 1, 4, 2, 3),))


def altered(quorum: FakeQuorum) -> list[tuple[str, str, str | None]]:
    bodies_: list[Any] = [each.body for _, each in quorum.requests if each.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS]
    return [
        (resource.resource_name, config.name, config.value)
        for body in bodies_
        for resource in body.resources
        for config in resource.configs
    ]


def test_min_isr_of_loaded_topic_is_altered_within_load_settings(world: QuorumWorld, quorum: FakeQuorum) -> None:
    quorum.topics["hot"] = Made(uuid.UUID(int=1), 4, {})
    operations = played(world, loaded_admin("loaded_min_isr", 5), 10)
    assert {(operation.f, operation.type) for operation in operations} == {("alter_loaded_min_isr", "ok")}
    assert not world.rows("changes")
    assert set(altered(quorum)) == {("hot", "min.insync.replicas", "2"), ("hot", "min.insync.replicas", "3")}


def test_every_setting_of_a_loaded_topic_is_altered(world: QuorumWorld, quorum: FakeQuorum) -> None:
    quorum.topics["hot"] = Made(uuid.UUID(int=1), 4, {})
    played(world, loaded_admin("loaded_setting", 50), 20)
    drawn = altered(quorum)
    assert {topic for topic, _, _ in drawn} == {"hot"}
    assert {(key, value) for _, key, value in drawn if key != "min.insync.replicas"} == {
        (key, value) for key, values in LOADED_SETTINGS.items() for value in values
    }


def test_broker_accepts_each_config_value_drawn_by_admins() -> None:
    needs_a_tier = {key for key in TOPIC_KEYS if key.startswith(("remote.", "local."))}
    not_drawn = {*WITHOUT_EFFECT, "internal.segment.bytes"}
    assert set(TOPIC_KEYS) - needs_a_tier - not_drawn == {*LOADED_SETTINGS, "min.insync.replicas"}
    for key, values in LOADED_SETTINGS.items():
        for value in values:
            assert value is None or normalised({key: value})


def test_upgrade_requests_next_level_once(world: QuorumWorld, quorum: FakeQuorum) -> None:
    lost = iter([True])
    world.fault = lambda each: "lose_response" if each.api_key == ApiKey.UPDATE_FEATURES and next(lost, False) else None
    operations = played(world, admin({"upgrade": 1}, 0.5), 5)
    assert {(operation.f, operation.type) for operation in operations} == {("update_features", "ok")}
    assert quorum.level == 20 + len(operations)


def test_hard_end_makes_requests_in_flight_info(world: QuorumWorld) -> None:
    world.fault = lambda each: "lose_response" if each.api_key == ApiKey.CREATE_TOPICS else None
    behaviour = admin()
    world.start(behaviour)
    world.run(2)
    rows = behaviour.close(world.now())
    assert [type(row).__name__ for row in rows] == ["OperationRow"] + ["ChangeRow"] * 3
    assert {row.type for row in rows if isinstance(row, OperationRow | ChangeRow)} == {"info"}


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"rate_per_s": 1, "mix": {"dance": 1}}, "unknown key load.admins.0..mix.dance"),
        ({"rate_per_s": 1, "mix": {"create": 0}}, "weight above 0"),
        ({"rate_per_s": 0, "mix": {"create": 1}}, "rate_per_s is 0"),
        ({"rate_per_s": 1, "mix": {"create": 1}, "pace": 3}, "unknown key load.admins.0..pace"),
    ],
)
def test_wrong_group_is_refused_in_a_sentence(group: dict[str, int | dict[str, int]], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(json.dumps({"bootstrap": BOOTSTRAP, "load": {"seconds": 1, "admins": [group]}}).encode())


def test_fleet_without_producers_and_fetchers_has_nothing_to_prepare_or_read(world: QuorumWorld) -> None:
    fleet = make_fleet(
        FleetSpec(BOOTSTRAP, Load(seconds=1, admins=(Admins(count=2, rate_per_s=1.0, mix=(("create", 1),)),)))
    )
    assert fleet.seeder is None
    world.start(fleet.preparer, fleet.final_reader)
    world.run(1)
    assert {fleet.preparer.process, fleet.final_reader.process} <= world.finished
    assert fleet.preparer.failure is None
    assert fleet.writers == fleet.admins
