"""Swarm schedules: drawn from the seed, explicit, and files like any other; shrunk until little is left."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.mutants import mutant as mutants
from chaos.search.many_seeds import search
from chaos.search.shrink import keep_as_regression, shrink
from chaos.search.sim_command import coverage_of, coverage_table, report
from chaos.search.write_scenario import text_of, write_scenario
from chaos.sim.one_seed import play_seed
from chaos.sim.swarm import (
    GROUP_COMMITS,
    SETTINGS,
    STORAGE_FILES,
    STORAGE_NOTES,
    TOGETHER,
    TRANSACTION_COMMITS,
    materialised,
)
from chaos.sim.verdict import SimVerdict
from reference_broker.configuration.broker_config import BrokerConfig
from reports.verdict import Outcome
from scenarios import loader
from scenarios.fault_kinds import FAULT_KINDS, SWARM_KINDS
from scenarios.load import Admins, Load, Topic
from scenarios.model import Cluster, Scenario, Swarm
from scenarios.vocabulary import CONNECTION_ROLES

SCENARIOS = {each.name: each for each in loader.load_all()}


def swarming(seconds: float = 12.0) -> Scenario:
    """Three voters and two observers, an admin, and every kind of fault."""
    mix = (("create", 3), ("delete", 1), ("configure", 1))
    admins = Admins(name="admins", rate_per_s=1.0, partitions=2, mix=mix)
    load = Load(seconds=seconds, topics=(Topic("hot", 2),), admins=(admins,), request_timeout_ms=5000)
    return replace(
        SCENARIOS["plain-load"],
        name="swarming",
        number=None,
        cluster=Cluster(3, (), 2),
        load=load,
        needs=(),
        min_fetches=0,
        min_acked=0,
        sim_min_fetches=0,
        sim_min_acked=0,
        max_schedule_slip_ms=60_000,
        swarm=Swarm(SWARM_KINDS, 2.0, 2.0),
        faults=(),
        points=(),
    )


def test_seed_draws_the_same_schedule_and_another_seed_another() -> None:
    first, again, other = (materialised(swarming(), seed) for seed in (1, 1, 2))
    assert first == again
    assert first.faults != other.faults
    assert first.swarm is None
    assert all(fault.optional for fault in first.faults)


def test_each_seed_has_only_some_of_the_kinds_and_all_seeds_have_all() -> None:
    drawn = [{fault.kind for fault in materialised(swarming(), seed).faults} for seed in range(1, 60)]
    assert {kind for kinds in drawn for kind in kinds} == set(SWARM_KINDS)
    assert max(len(kinds) for kinds in drawn) < len(SWARM_KINDS)


def test_swarm_flips_bits_of_one_disk_and_in_frames_under_a_checksum_or_in_their_length() -> None:
    scenario = SCENARIOS["swarm-replicated"]
    parts = set()
    for seed in range(1, 120):
        faults = materialised(scenario, seed).faults
        assert len({fault.node for fault in faults if fault.kind == "disk_bit_flipped"}) <= 1
        for fault in faults:
            if FAULT_KINDS[fault.kind].flips_frame_bit:
                parts.add((fault.kind, fault.part, fault.match.api, fault.match.role))
    checksummed = {("request_damaged", "checksummed", 0, "client")}
    checksummed |= {("response_damaged", "checksummed", 1, role) for role in CONNECTION_ROLES}
    kinds = ("request_damaged", "response_damaged")
    assert parts == checksummed | {(kind, "length", None, role) for kind in kinds for role in CONNECTION_ROLES}


def test_swarm_over_a_remote_tier_meets_the_moments_at_which_files_change(tmp_path: Path) -> None:
    drawn = [materialised(SCENARIOS["swarm-storage"], seed) for seed in range(1, 60)]
    faults = [fault for each in drawn for fault in each.faults]
    assert len({fault.match.path for fault in faults} & set(STORAGE_FILES)) > len(STORAGE_FILES) // 2
    assert len({fault.match.note for fault in faults} & set(STORAGE_NOTES)) > len(STORAGE_NOTES) // 2
    assert "store_slowed" in {fault.kind for fault in faults}
    assert any("node_terminated" in fault.after for fault in faults)
    path = tmp_path / "drawn.toml"
    write_scenario(drawn[0], path, "")
    assert loader.load(path).faults == drawn[0].faults
    others = materialised(SCENARIOS["swarm-replicated"], 1).faults
    assert "store_slowed" not in {fault.kind for fault in others}


@pytest.mark.parametrize(
    ("name", "commits"),
    [("swarm-groups", GROUP_COMMITS), ("swarm-transactions", (*GROUP_COMMITS, *TRANSACTION_COMMITS)), ("swarm", ())],
)
def test_coordinators_are_lost_when_they_have_committed_something_and_replicas_are_slow(
    name: str, commits: tuple[str, ...], tmp_path: Path
) -> None:
    notes, kinds = set(), set()
    for seed in range(1, 40):
        drawn = replace(materialised(SCENARIOS[name], seed), mutants=())
        pairs = [
            (slow, lost)
            for slow, lost in pairwise(drawn.faults)
            if slow.kind == "link_delayed" and lost.on == "note" and lost.after_s == round(slow.at_s + 0.5, 3)
        ]
        assert bool(pairs) is bool(commits)
        notes |= {lost.match.note for _, lost in pairs}
        kinds |= {lost.kind for _, lost in pairs}
    assert notes == set(commits)
    assert kinds == ({"node_killed", "node_powered_off", "node_paused"} if commits else set())
    path = write_scenario(drawn, tmp_path / f"{name}.toml", "drawn")
    assert loader.load(path) == replace(drawn, path=str(path))


def test_brokers_learn_of_changes_late_and_are_not_fenced() -> None:
    for name, session_s in (("swarm-groups", 3.0), ("swarm-transactions", 1.5)):
        for seed in range(1, 20):
            drawn = materialised(SCENARIOS[name], seed).faults
            late = [
                fault for fault in drawn if fault.kind == "node_cut_from_controller" and fault.duration_s < session_s
            ]
            assert len(late) >= 4


def test_leaders_are_alone_for_longer_than_replicas_may_lag() -> None:
    scenario = SCENARIOS["swarm-replicated"]
    assert scenario.swarm is not None
    scenario = replace(scenario, swarm=replace(scenario.swarm, alone_every_s=15.0))
    lag_s = int(dict(scenario.cluster.config)["replica.lag.time.max.ms"]) / 1000
    unsent = 0
    for seed in range(1, 40):
        faults = {fault.name: fault for fault in materialised(scenario, seed).faults}
        alone = [
            each for each in faults.values() if each.link and each.link.source == "all" and each.link.target in range(3)
        ]
        assert len(alone) == 2, "the load takes 30 s"
        for fault in alone:
            assert fault.kind == "link_cut"
            assert fault.duration_s > lag_s
            if fault.after:
                unsent += 1
                first = faults[fault.after].link
                assert first is not None
                assert fault.link is not None
                assert first.source == fault.link.target
                assert first.target not in (first.source, "all")
    assert 20 < unsent < 60
    drawn = materialised(SCENARIOS["swarm-replicated"], 1).faults
    assert not any(each.link and each.link.target in range(3) for each in drawn)


def test_some_seeds_have_short_slices() -> None:
    sliced = replace(swarming(), swarm=Swarm(SWARM_KINDS, 2.0, 2.0, sliced_percent=30))
    drawn = [materialised(sliced, seed).cluster.sim_slice_items for seed in range(1, 200)]
    assert set(drawn) == {0, 1, 3}
    assert 120 < drawn.count(0) < 160
    others = {materialised(SCENARIOS["swarm"], seed).cluster.sim_slice_items for seed in range(1, 40)}
    assert others == {0}


def test_fault_rate_matches_scenario() -> None:
    counts = [len(materialised(swarming(60.0), seed).faults) for seed in range(1, 101)]
    assert 25 <= sum(counts) / len(counts) <= 40  # Those at special moments come on top.


@pytest.mark.thorough
def test_some_seeds_play_the_file_and_others_have_settings() -> None:
    scenario = SCENARIOS["swarm-replicated"]
    drawn = [materialised(scenario, seed) for seed in range(1, 200)]
    own = [each for each in drawn if (each.cluster, each.load) == (scenario.cluster, scenario.load)]
    assert 15 < len(own) < 80
    together = [set(each.items()) <= set(found.cluster.config) for each in TOGETHER for found in drawn]
    assert 0.2 * len(together) < sum(together) < 0.4 * len(together)
    config = {pair for found in drawn for pair in found.cluster.config}
    assert {(name, value) for name, values in SETTINGS.items() for value in values} <= config


@pytest.mark.parametrize("settings", TOGETHER)
def test_settings_that_are_drawn_together_fit_together(settings: Mapping[str, str]) -> None:
    for name in (each for each, scenario in SCENARIOS.items() if scenario.swarm is not None):
        BrokerConfig.parse({**dict(SCENARIOS[name].cluster.config), **settings})


@pytest.mark.parametrize("seed", range(1, 21))
def test_drawn_swarm_round_trips_through_scenario_file(seed: int, tmp_path: Path) -> None:
    drawn = replace(materialised(swarming(), seed), mutants=())
    path = write_scenario(drawn, tmp_path / "swarming.toml", "drawn\nby hand")
    assert loader.load(path) == replace(drawn, path=str(path))
    assert path.read_text().startswith("# drawn\n# by hand\n")


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_can_be_written_and_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(text_of(SCENARIOS[name]))
    assert loader.load(path) == replace(SCENARIOS[name], path=str(path), number=None)


@pytest.mark.simulated
@pytest.mark.clause("S-10", "T-7", "T-8")
def test_swarms_find_no_violation_and_report_fired_faults() -> None:
    search_result = search(swarming(), range(1, 9), processes=1)
    assert search_result.outcome is Outcome.PASSED, report(search_result)
    coverage = coverage_of(search_result.verdicts)
    assert sum(coverage.values()) >= 8
    text = report(search_result)
    assert "seeds/s" in text
    assert "events/s" in text
    assert "cells (kind, role, state)" in text
    assert len(coverage_table(coverage)) > 3


def forgetful(seed: int) -> tuple[SimVerdict, Scenario]:
    scenario = swarming()
    return play_seed(scenario, seed, FORGETFUL.name).verdict, scenario


def _truncates_nothing(original: object, self: object, offset: int) -> int:  # noqa: ARG001
    """A follower keeps records that its leader does not have."""
    log = self.log  # type: ignore[attr-defined]
    return int(log.log_end_offset) if offset < log.log_end_offset else int(log.truncate_to(offset))


FORGETFUL = mutants.Mutant(
    "keeps_what_diverges", "reference_broker.quorum.metadata_log:MetadataLog.truncate_to", _truncates_nothing
)


@pytest.mark.simulated
@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    ("mutant", "guarantee"),
    [
        ("cached_log_start_never_updated", "incremental-response-exact"),
        ("dead_follower_holds_up_deletion", "responses-after-heal"),
    ],
)
def test_swarm_that_deletes_records_sees_what_leaders_know_of_log_starts(mutant: str, guarantee: str) -> None:
    assert guarantee in play_seed(SCENARIOS["swarm-deletions"], 1, mutant).verdict.broken


@pytest.mark.simulated
def test_failing_swarm_shrinks_to_a_short_file_that_fails_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.sim.one_seed.by_name", lambda _: FORGETFUL)
    for seed in range(1, 200):
        failing, scenario = forgetful(seed)
        if failing.broken:
            break
    else:
        pytest.fail("no seed killed the mutant")
    small = shrink(scenario, failing, max_runs=8)
    assert len(small.faults) < len(materialised(scenario, failing.seed).faults)
    assert small.load.in_simulator.seconds <= scenario.load.in_simulator.seconds
    path, command = keep_as_regression(small, failing, tmp_path)
    assert command == f"./crucible sim {path} --seed {failing.seed} --mutant {failing.mutant}"
    again = play_seed(loader.load(path), failing.seed, failing.mutant).verdict
    assert failing.broken[0] in again.broken


def test_one_fault_is_printed_in_the_singular() -> None:
    assert coverage_table({("node_killed", "leader", "load"): 1})[0] == "1 fault fired in 1 cell (kind, role, state):"
