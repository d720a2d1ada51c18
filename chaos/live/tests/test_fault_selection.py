"""The faults of a live run for a seed, where a scenario leaves a choice."""

from dataclasses import replace

import pytest

from chaos.interceptor.rules import matches_frame
from chaos.live.errors import SetupError
from chaos.live.fault_selection import select_live_faults
from chaos.live.runner import check_playable
from chaos.mutants.registry import mutants_of
from reference_broker.wire.tags import Tag
from scenarios.loader import find
from scenarios.model import Fault, Range, Scenario, Swarm
from scenarios.revisions import in_revision

KILLED = Fault("killed", "node_killed", on="note", either="how")
POWERED_OFF = Fault("powered_off", "node_powered_off", on="note", either="how")
PAUSED = Fault("paused", "node_paused", on="note", either="how", nth=Range(1, 4), swept=True)


def scenario(*faults: Fault) -> Scenario:
    return replace(find("plain-load"), faults=faults)


def test_simulator_only_fault_is_not_drawn_among_alternatives() -> None:
    names = {
        fault.name
        for seed in range(8)
        for fault in select_live_faults(scenario(KILLED, POWERED_OFF, PAUSED), seed).faults
    }
    assert names == {"killed", "paused"}
    check_playable(scenario(KILLED, POWERED_OFF, PAUSED))


def test_without_a_choice_it_is_refused() -> None:
    for faults in ([replace(POWERED_OFF, either="")], [POWERED_OFF, replace(POWERED_OFF, name="another")]):
        with pytest.raises(SetupError, match="node_powered_off exists only in the simulator"):
            check_playable(scenario(*faults))


def test_same_seed_casts_the_same() -> None:
    whole = scenario(KILLED, POWERED_OFF, PAUSED)
    assert select_live_faults(whole, 5) == select_live_faults(whole, 5)
    assert len({str(select_live_faults(whole, seed).faults) for seed in range(8)}) > 2


def test_mutant_is_played_only_where_there_is_its_mechanism() -> None:
    """A mutant of the final revision's epochs changes nothing in the first one, so no run could turn red."""
    mutant = "epoch_not_advanced_when_response_lost"
    final, first = (in_revision(find("01-lost-response"), each) for each in ("final", "first"))
    check_playable(final, mutant=mutant)
    assert mutant in mutants_of(final)
    with pytest.raises(SetupError, match="mechanism that only final has"):
        check_playable(first, mutant=mutant)
    assert mutant not in mutants_of(first)


def test_faults_that_each_seed_draws_are_the_simulator_s() -> None:
    with pytest.raises(SetupError, match="draws its faults"):
        check_playable(replace(scenario(KILLED), swarm=Swarm(("node_killed",), 4.0, 4.0)))


def test_without_sessions_same_faults_hit_every_fetch() -> None:
    whole = find("01-lost-response")
    revised = in_revision(whole, "none")
    (lost,) = select_live_faults(revised, 3).faults
    assert lost.match.session is None
    assert (lost.kind, lost.nth, lost.every) == (whole.faults[0].kind, whole.faults[0].nth, whole.faults[0].every)
    assert not {"session-epoch-order", "session-lost", "eviction-rules"} & set(
        select_live_faults(revised, 3).guarantees
    )
    assert {"lost-write", "fetch-gap"} <= set(select_live_faults(revised, 3).guarantees)


def test_without_sessions_a_follower_s_fetch_is_distinguished_from_one_of_the_metadata_log() -> None:
    *_, lost = select_live_faults(in_revision(find("fetch-revisions"), "none"), 3).faults
    of_metadata = Tag(1, 17, "node-1", 0, -1, role="peer")
    assert [matches_frame(lost.match, "", tag) for tag in (of_metadata._replace(session_epoch=0), of_metadata)] == [
        True,
        False,
    ]


def test_with_sessions_nothing_is_left_out() -> None:
    for revision in ("final", "first"):
        revised = in_revision(find("01-lost-response"), revision)
        assert select_live_faults(revised, 3).guarantees == revised.guarantees
        assert select_live_faults(revised, 3).faults[0].match.session is True


def test_of_the_states_that_only_sessions_have_none_is_set_without_them() -> None:
    assert find("06-epoch-wrap").state
    assert select_live_faults(in_revision(find("06-epoch-wrap"), "none"), 1).state == ()


def test_without_sessions_a_link_between_nodes_is_still_one_between_nodes() -> None:
    played = select_live_faults(in_revision(find("link-faults"), "none"), 1)
    lost = next(fault for fault in played.faults if fault.name == "fetch-response-lost")
    assert (lost.match.session, lost.match.session_epoch) == (None, Range(0, 0))
    late = next(fault for fault in played.faults if fault.name == "metadata-late")
    assert late.match.session_epoch is None
