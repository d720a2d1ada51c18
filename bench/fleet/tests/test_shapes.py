"""Load shapes: how many clients live when, and what a client that leaves early leaves behind."""

import json
from collections import Counter

import pytest

from bench.fleet.behaviours.protocol import ClientSettings, Leaving
from bench.fleet.spec import LoadShape, SpecError, clients_at, parse_spec, share
from bench.fleet.tests.conftest import FleetWorld
from bench.fleet.tests.test_clients_of_a_cluster import HOT, fetcher, producer, settings, spread
from reports.rows import END_OF_RUN_US

__all__ = ["settings", "spread"]


def test_steps_are_equally_high_and_equally_long() -> None:
    shape = LoadShape("step", steps=4)
    alive = [clients_at(shape, 100, second, 20) for second in range(20)]
    assert Counter(alive) == {25: 5, 50: 5, 75: 5, 100: 5}
    assert alive == sorted(alive)


def test_spike_is_in_the_middle() -> None:
    alive = [clients_at(LoadShape("spike", base_percent=10), 50, second, 10) for second in range(10)]
    assert alive == [5, 5, 5, 5, 50, 50, 5, 5, 5, 5]


def test_soak_ramps_up_in_its_first_tenth_and_stays() -> None:
    assert [share(LoadShape("soak"), each, 100) for each in (0, 5, 10, 50, 100)] == [0, 0.5, 1, 1, 1]
    assert clients_at(LoadShape("soak"), 10, 0, 100) == 1


@pytest.mark.parametrize(
    ("shape", "seconds", "message"),
    [
        ({"kind": "wave"}, 5, "no load shape 'wave'"),
        ({"kind": "step"}, 0, "seconds must be at least 1"),
        ({"kind": "step", "steps": 0}, 5, "steps of at least 1"),
        ({"kind": "spike", "base_percent": 101}, 5, "base_percent from 1 to 100"),
    ],
)
def test_wrong_shape_is_refused_in_one_sentence(shape: dict[str, int | str], seconds: int, message: str) -> None:
    spec = {"bootstrap": ["127.0.0.1:1"], "load": {"seconds": seconds}, "shape": shape}
    with pytest.raises(SpecError, match=message):
        parse_spec(json.dumps(spec).encode())


@pytest.mark.usefixtures("spread")
def test_fetcher_that_leaves_ends_its_assignments_though_it_has_not_caught_up(
    world: FleetWorld, settings: ClientSettings
) -> None:
    load, subject = producer(settings), fetcher("incremental", settings)
    world.start(load, subject)
    world.run(1)
    world.at(world.now_us, subject, Leaving())
    world.run(0.1)
    left_us = world.now_us
    assert subject.process in world.finished
    ended = [row for row in world.rows("assignments") if row.process == subject.process]
    assert len(ended) == len(HOT) + 1
    assert all(row.until_us <= left_us < END_OF_RUN_US for row in ended)


@pytest.mark.usefixtures("spread")
def test_leaving_producer_completes_batches_in_flight(world: FleetWorld, settings: ClientSettings) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.at(world.now_us, load, Leaving())
    world.run(0.1)
    assert load.process in world.finished
    sent = [row for row in world.rows("operations") if row.f == "produce"]
    assert {row.type for row in sent} == {"ok"}
