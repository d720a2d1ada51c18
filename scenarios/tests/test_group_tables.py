"""Groups, mirrors, rolling bounces and finalized features in a scenario file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.load import Groups, Mirror
from scenarios.loader import ScenarioError, find, parse
from scenarios.model import Scenario


def table() -> dict[str, Any]:
    return {
        "title": "t",
        "clauses": [],
        "needs": ["signals", "drafts", "proxy"],
        "mutants": [],
        "guarantees": [],
        "min_fetches": 1,
        "min_acked": 1,
        "max_schedule_slip_ms": 1000,
        "cluster": {"nodes": 3},
        "load": {
            "seconds": 10,
            "topics": [{"name": "hot", "partitions": 2}],
            "groups": [
                {"name": "g", "count": 3, "sim_count": 2, "topics": ["hot"]},
                {"name": "g", "count": 1, "topics": ["hot"], "metadata_epoch": False},
            ],
            "mirror": {"topic": "hot"},
        },
        "fault": [
            {"name": "bounce", "kind": "rolling_bounce", "at_s": 1, "config": {"num.partitions": 2}},
            {"name": "switch", "kind": "feature_finalized", "at_s": 5, "feature": "f", "level": 1},
        ],
    }


def read(change: Callable[[dict[str, Any]], object] = lambda _: None) -> Scenario:
    found = table()
    change(found)
    return parse(found, Path("some.toml"))


def test_what_is_given_is_read_and_the_rest_has_its_default() -> None:
    load = read().load
    assert load.groups[0] == Groups(name="g", count=3, sim_count=2, topics=("hot",))
    assert load.in_simulator.groups[1].count == 1
    assert not load.groups[1].metadata_epoch
    assert load.mirror == Mirror(topic="hot")
    bounce, switch = read().faults
    assert bounce.config == (("num.partitions", "2"),)
    assert switch.feature == "f"
    assert switch.level == 1


def heeding(**more: object) -> dict[str, object]:
    fields = {"name": "v", "count": 1, "topics": ["hot"], "protocol": "assigned", "view": True, "metadata_epoch": False}
    return {**fields, "tombstone_horizon": True, **more}


def add_horizon(found: dict[str, Any]) -> None:
    found["load"]["groups"] = [heeding()]
    found["cluster"]["config"] = {"crucible.tombstone.horizon.enable": True}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda found: found["load"].update(groups=[heeding(view=False)]), "needs a view"),
        (lambda found: found["cluster"].update(config={}), "need crucible.tombstone.horizon.enable = true"),
        (lambda found: found.update(needs=["signals", "proxy"]), "tombstone horizon is sent under a draft"),
    ],
)
def test_readers_of_the_tombstone_horizon_need_a_cluster_that_returns_it(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    def changed(found: dict[str, Any]) -> None:
        add_horizon(found)
        del found["load"]["mirror"]
        change(found)

    def whole(found: dict[str, Any]) -> None:
        add_horizon(found)
        del found["load"]["mirror"]

    assert read(whole).load.groups[0].tombstone_horizon
    with pytest.raises(ScenarioError, match=named):
        read(changed)


def test_rolling_bounce_must_restart_each_node() -> None:
    assert read().expected_faults == ("bounce", "bounce", "bounce", "switch")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda it: it["load"]["groups"][0].update(topics=[]), "topics is empty"),
        (lambda it: it["load"]["groups"][0].update(topics=["other"]), "'other' of group 'g' is not among: hot"),
        (lambda it: it["load"]["groups"][0].update(protocol="lazy"), "allowed: eager, cooperative, assigned"),
        (lambda it: it["load"]["groups"][0].update(protocol="assigned", static=True), "there is no static one"),
        (lambda it: it["load"]["groups"][0].update(metadata_from=7), "node 7 is not in the cluster"),
        (lambda it: it["load"]["groups"][0].update(metadata_from="nobody"), "any, alternating"),
        (lambda it: it["load"]["groups"][0].update(heartbeat_interval_ms=9000), "less than session_timeout_ms"),
        (lambda it: it["load"]["groups"][0].update(name="mirror"), "is that of the mirror's group"),
        (lambda it: it["load"]["mirror"].update(topic="other"), "'other' of the mirror"),
        (lambda it: it.update(needs=["signals", "proxy"]), "need 'drafts'"),
        (lambda it: it["fault"][1].pop("level"), "needs both"),
        (lambda it: it["fault"][0].update(kind="node_killed"), "only for rolling_bounce"),
    ],
)
def test_what_makes_no_sense_is_refused(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(ScenarioError, match=r"some\.toml") as refused:
        read(change)
    assert reason in str(refused.value)


@pytest.mark.parametrize("number", [19, 20, 21, 38, 39, 40, 41, 42])
def test_scenarios_of_the_metadata_epoch_are_there_with_their_mutants(number: int) -> None:
    scenario = find(str(number))
    assert scenario.number == number
    assert scenario.mutants
