"""From a spec to behaviours: the same ones however they are dealt, and the same run from the same seed."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from bench.fleet.behaviours.protocol import Connected, Now, Started
from bench.fleet.spec import FetcherGroup, FleetSpec, ProducerGroup, SpecError, address_of, make_fleet

SPEC = FleetSpec(
    bootstrap=["node-0:9092"],
    seconds=1,
    partitions=4,
    fetchers=[FetcherGroup("forgetting", 3, 3), FetcherGroup("resending", 2, 4)],
    producers=[ProducerGroup(3, 600)],
)


def plans(fleet):
    return [each.plan for each in (*fleet.fetchers, *fleet.producers)]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_are_the_whole_fleet_dealt_out(workers):
    dealt = [plan for index in range(workers) for plan in plans(make_fleet(SPEC, (index, workers)))]
    assert sorted(dealt, key=lambda each: each.process) == sorted(
        plans(make_fleet(SPEC)), key=lambda each: each.process
    )


def test_each_fetcher_has_an_idle_partition_of_its_own_and_shares_the_hot_ones():
    fetchers = make_fleet(SPEC).fetchers
    idle = [each.plan.partitions[0] for each in fetchers]
    assert len(set(idle)) == len(idle) == 5
    assert {each.topic for each in idle} == {"idle"}
    readers = [where for each in fetchers for where in each.plan.partitions[1:]]
    counts = [readers.count(where) for where in set(readers)]
    assert len(counts) == 4
    assert max(counts) - min(counts) <= 1


def test_the_rate_of_a_group_is_that_of_all_its_producers():
    [first, *_] = make_fleet(SPEC).producers
    assert first.plan.interval_us == 1_000_000 * 3 * 10 // 600


def test_one_seed_gives_one_history(broker, world):
    def history(seed):
        own_broker = type(broker)({"hot": 4, "idle": 5})
        own = type(world)(own_broker)
        lost = iter(range(1, 10_000))
        own.fault = lambda _: "cut" if next(lost) % 37 == 0 else None
        fleet = make_fleet(FleetSpec(["node-0:9092"], 1, 4, SPEC.fetchers, SPEC.producers, seed=seed))
        own.start(*fleet.load)
        own.run(3)
        own.stop(*fleet.load)
        own.run(20)
        own.recorder.close(own.now(), ())
        return own.sink.tables

    assert history(1) == history(1)
    assert history(1) != history(2)


@pytest.mark.live
def test_importing_the_fleet_command_does_not_import_locust_or_pyarrow():
    code = "import sys, bench.fleet.command; print([m for m in ('locust', 'gevent', 'pyarrow') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_addresses_may_be_ipv6():
    assert address_of("[::1]:92") == ("::1", 92)
    with pytest.raises(SpecError, match="not host:port"):
        address_of("nowhere:x")


def test_clients_dial_the_proxy_and_believe_in_the_advertised_address():
    fleet = make_fleet(replace(SPEC, dial={"node-0:9092": "127.0.0.1:7"}))
    (connect,) = fleet.fetchers[0].step(Now(0, 0), Started())
    assert connect.address == ("127.0.0.1", 7)
    fleet.fetchers[0].step(Now(1, 0), Connected())
    assert fleet.fetchers[0].connected_to == ("node-0", 9092)
