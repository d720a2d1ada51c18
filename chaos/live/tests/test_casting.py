"""What a live run plays for a seed, where a scenario leaves a choice."""

from dataclasses import replace

import pytest

from chaos.live.casting import cast
from chaos.live.errors import SetupError
from chaos.live.runner import check_playable
from scenarios.loader import find
from scenarios.model import Fault, Range, Scenario, Swarm

KILLED = Fault("killed", "node_killed", on="note", either="how")
POWERED_OFF = Fault("powered_off", "node_powered_off", on="note", either="how")
PAUSED = Fault("paused", "node_paused", on="note", either="how", nth=Range(1, 4), swept=True)


def scenario(*faults: Fault) -> Scenario:
    return replace(find("plain-load"), faults=faults)


def test_what_only_the_simulator_can_do_is_not_drawn_where_there_is_a_choice() -> None:
    names = {each.name for seed in range(8) for each in cast(scenario(KILLED, POWERED_OFF, PAUSED), seed).faults}
    assert names == {"killed", "paused"}
    check_playable(scenario(KILLED, POWERED_OFF, PAUSED))


def test_without_a_choice_it_is_refused() -> None:
    for faults in ([replace(POWERED_OFF, either="")], [POWERED_OFF, replace(POWERED_OFF, name="another")]):
        with pytest.raises(SetupError, match="node_powered_off exists only in the simulator"):
            check_playable(scenario(*faults))


def test_the_same_seed_casts_the_same() -> None:
    whole = scenario(KILLED, POWERED_OFF, PAUSED)
    assert cast(whole, 5) == cast(whole, 5)
    assert len({str(cast(whole, seed).faults) for seed in range(8)}) > 2


def test_faults_that_each_seed_draws_are_the_simulator_s() -> None:
    with pytest.raises(SetupError, match="draws its faults"):
        check_playable(replace(scenario(KILLED), swarm=Swarm(("node_killed",), 4.0, 4.0)))
