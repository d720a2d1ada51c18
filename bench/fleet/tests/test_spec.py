"""From a spec to behaviours: the same ones however they are dealt, and the same run from the same seed."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.fleet.behaviours.admin import OPERATIONS
from bench.fleet.behaviours.producers import ProducerPlan
from bench.fleet.behaviours.protocol import Connect, Connected, Now, Started
from bench.fleet.behaviours.session_fetcher import REVISIONS, VARIANTS, FetcherPlan
from bench.fleet.fleet import Fleet, make_fleet
from bench.fleet.plans import producer_plans
from bench.fleet.spec import FleetSpec, SpecError, address_of, parse_spec, write_spec
from bench.fleet.tests.conftest import FakeBroker, FleetWorld
from scenarios.load import Fetchers, Load, Producers, Topic
from scenarios.vocabulary import ADMIN_OPERATIONS, BEHAVIOURS, FETCHER_REVISIONS

SPEC = FleetSpec(
    bootstrap=["node-0:9092"],
    load=Load(
        seconds=1,
        topics=(Topic("hot", 4),),
        fetchers=(
            Fetchers(name="a", behaviour="forgetting", count=3, topic="hot", partitions=3),
            Fetchers(name="b", behaviour="resending", count=2, topic="hot", partitions=4),
        ),
        producers=(Producers(count=3, topic="hot", rate_per_s=200),),
    ),
)


def plans(fleet: Fleet) -> list[FetcherPlan | ProducerPlan]:
    return [*(fetcher.plan for fetcher in fleet.fetchers), *(producer.plan for producer in fleet.producers)]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_are_the_whole_fleet_dealt_out(workers: int) -> None:
    dealt = [plan for index in range(workers) for plan in plans(make_fleet(SPEC, (index, workers)))]
    assert sorted(dealt, key=lambda plan: plan.process) == sorted(
        plans(make_fleet(SPEC)), key=lambda plan: plan.process
    )


@pytest.mark.parametrize(("rate_per_s", "batch_records", "interval_us"), [(200, 10, 50_000), (0.25, 1, 4_000_000)])
def test_each_producer_keeps_to_its_rate_however_small(rate_per_s: float, batch_records: int, interval_us: int) -> None:
    slow = Producers(count=3, topic="hot", rate_per_s=rate_per_s, batch_records=batch_records)
    spec = replace(SPEC, load=Load(seconds=1, topics=SPEC.load.topics, producers=(slow,)))
    assert [plan.interval_us for plan in producer_plans(spec)] == 3 * [interval_us]


def test_each_fetcher_has_an_idle_partition_of_its_own_and_shares_the_hot_ones() -> None:
    fetchers = make_fleet(SPEC).fetchers
    idle = [fetcher.plan.partitions[0] for fetcher in fetchers]
    assert len(set(idle)) == len(idle) == 5
    assert {each.topic for each in idle} == {"idle"}
    readers = [partition for fetcher in fetchers for partition in fetcher.plan.partitions[1:]]
    counts = [readers.count(reader) for reader in set(readers)]
    assert len(counts) == 4
    assert max(counts) - min(counts) <= 1


def test_each_producer_of_group_has_rate_of_load() -> None:
    [first, *_] = make_fleet(SPEC).producers
    assert first.plan.interval_us == 1_000_000 * 3 * 10 // 600


def test_spec_round_trip(tmp_path: Path) -> None:
    spec = replace(SPEC, topic_prefix="run-", dial={"a:1": "b:2"})
    assert parse_spec(write_spec(spec, tmp_path / "spec.json").read_bytes()) == spec


def test_clients_of_several_topics_read_and_write_their_own() -> None:
    topics = (Topic("hot", 2), Topic("cold", 3, config=(("cleanup.policy", "compact"),)))
    load = Load(
        seconds=1,
        topics=topics,
        fetchers=(
            Fetchers(name="a", behaviour="full", count=1, topic="hot", partitions=2),
            Fetchers(name="b", behaviour="full", count=2, topic="cold", partitions=2),
        ),
        producers=(Producers(count=1, topic="cold", rate_per_s=10),),
    )
    fleet = make_fleet(replace(SPEC, load=load, topic_prefix="run-"))
    read = [[tuple(partition) for partition in fetcher.plan.partitions[1:]] for fetcher in fleet.fetchers]
    hot, cold = "run-hot", "run-cold"
    assert read == [[(hot, 0), (hot, 1)], [(cold, 0), (cold, 1)], [(cold, 2), (cold, 0)]]
    assert {partition.topic for partition in fleet.producers[0].plan.partitions} == {"run-cold"}
    made = {each.name: (each.partitions, dict(each.config)) for each in fleet.preparer.wanted}
    compacted = {"cleanup.policy": "compact"}
    assert made == {"run-hot": (2, {}), "run-cold": (3, compacted), "run-idle": (3, {})}


def test_keys_of_load_are_known_to_behaviours() -> None:
    assert tuple(VARIANTS) == BEHAVIOURS
    assert tuple(REVISIONS) == FETCHER_REVISIONS
    assert tuple(OPERATIONS) == ADMIN_OPERATIONS


@pytest.mark.thorough
def test_one_seed_gives_one_history(broker: FakeBroker, world: FleetWorld) -> None:
    def history(seed: int) -> Mapping[str, Sequence[object]]:
        own_broker = type(broker)({"hot": 4, "idle": 5})
        own = type(world)(own_broker)
        lost = iter(range(1, 10_000))
        own.fault = lambda _: "cut" if next(lost) % 37 == 0 else None
        fleet = make_fleet(replace(SPEC, seed=seed))
        own.start(*fleet.load)
        own.run(3)
        own.stop(*fleet.load)
        own.run(20)
        own.recorder.close(own.now(), ())
        return own.sink.tables

    assert history(1) == history(1)
    assert history(1) != history(2)


@pytest.mark.live
def test_importing_the_fleet_command_does_not_import_locust_or_pyarrow() -> None:
    code = (
        "import sys, bench.fleet.fleet_command; print([m for m in ('locust', 'gevent', 'pyarrow') if m in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def test_addresses_may_be_ipv6() -> None:
    assert address_of("[::1]:92") == ("::1", 92)
    with pytest.raises(SpecError, match="not host:port"):
        address_of("nowhere:x")


def test_clients_dial_the_proxy_and_believe_in_the_advertised_address() -> None:
    fleet = make_fleet(replace(SPEC, dial={"node-0:9092": "127.0.0.1:7"}))
    (connect,) = fleet.fetchers[0].step(Now(0, 0), Started())
    assert isinstance(connect, Connect)
    assert connect.address == ("127.0.0.1", 7)
    fleet.fetchers[0].step(Now(1, 0), Connected())
    assert fleet.fetchers[0].connected_to == ("node-0", 9092)
