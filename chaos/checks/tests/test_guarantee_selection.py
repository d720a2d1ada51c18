"""Guarantees of scenarios: each name is declared once and has a judge."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.checks.guarantee_selection import checked, is_judged, promised_to_clients, tables_left
from chaos.checks.suite import check_kinds
from chaos.sim.one_seed import play_seed
from chaos.sim.run_folder import write_out
from reports.columns import ROW_TABLES
from reports.guarantees import GUARANTEES, SeenFrom, names_seen_from
from reports.manifest import read_manifest
from reports.schema import stored_files
from reports.standby.expected import SELDOM
from scenarios import loader
from scenarios.fields import ScenarioError
from scenarios.loader import load_all

DEMO = loader.find("demo")


def test_every_scenario_names_only_guarantees_and_outcomes_that_exist() -> None:
    for scenario in loader.load_all():
        assert checked(scenario) is scenario


def test_unknown_guarantee_is_refused_in_a_sentence_that_names_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"has 'duplicates'; allowed: .*lost-write"):
        checked(replace(DEMO, guarantees=("duplicates",)))


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("session-epoch=expecte", "there is no outcome 'session-epoch=expecte', did you mean"),
        ("session-epoch=expected@second", "points has 'second'; allowed: "),
    ],
)
def test_unknown_outcome_or_revision_is_refused(point: str, words: str) -> None:
    checked(replace(DEMO, points=("session-epoch=expected", "session-epoch=expected@first")))
    with pytest.raises(ScenarioError, match=words):
        checked(replace(DEMO, points=(point,)))


def test_every_guarantee_has_a_check_in_the_simulator() -> None:
    of_targets = names_seen_from(SeenFrom.RUNNER)
    assert set(GUARANTEES) - set(of_targets) == {kind.guarantee for kind in check_kinds()}


def test_of_an_external_broker_only_what_clients_see_is_promised() -> None:
    scenario = replace(DEMO, guarantees=("lost-write", "session-lost", "isr-honest"))
    assert promised_to_clients(scenario) == ("lost-write",)
    assert "session-lost" in names_seen_from(SeenFrom.TRACE)


def test_without_metadata_epoch_only_stored_epochs_are_not_judged() -> None:
    scenario = loader.find("epoch-switched-off")
    assert [guarantee for guarantee in GUARANTEES if not is_judged(scenario, guarantee)] == ["commit-regression"]


def test_with_damaged_bytes_only_promised_and_unconditional_guarantees_are_judged() -> None:
    scenario = loader.find("damaged-bytes")
    assert {guarantee for guarantee in GUARANTEES if is_judged(scenario, guarantee)} == {
        "quorum-converges",
        "corrupt-value",
        "responses-after-heal",
    }


@pytest.mark.parametrize("name", ["damaged-bytes", "damaged-frames"])
def test_folder_of_a_simulated_run_promises_nothing_that_the_simulator_does_not_judge(
    name: str, tmp_path: Path
) -> None:
    scenario = loader.find(name)
    short = replace(scenario, load=replace(scenario.load, sim_seconds=0.5))
    verdict, world = play_seed(short, 1, keep_trace=True)
    manifest = read_manifest(write_out(verdict, world, tmp_path))
    assert manifest.history_files == stored_files(tmp_path)
    assert "faults.parquet" in manifest.history_files
    promised = manifest.promised()
    assert promised
    assert all(is_judged(world.scenario, each) for each in promised)
    assert ("log-matching" in promised) is (name == "damaged-frames")


def test_guarantees_of_metadata_epochs_need_client_with_them() -> None:
    of_epochs = {"rewinds", "no-fetch-before-epoch", "nonmonotonic-metadata-epoch"}
    for scenario in loader.load_all():
        load = scenario.load
        if of_epochs & set(scenario.guarantees):
            assert load.mirror is not None or any(group.metadata_epoch for group in load.groups), scenario.name


ALL = {each.name: each for each in load_all()}
IN_EACH_CHANGE = ("01-lost-response", "26-tombstones-missed", "48-consume-transform-produce", "mirror")
MAY_BE_ABSENT = {"memberships", "metadata_epochs", "commits"}
"""The tables of a group depend on its settings: one that keeps views commits nothing, for example."""


def test_producers_that_keep_metadata_epochs_leave_them() -> None:
    load = ALL["19-stale-broker"].load
    alone = replace(load, groups=(), admins=())
    assert any(producer.metadata_epoch for producer in alone.producers) == ("metadata_epochs" in tables_left(alone))
    kept = replace(alone, producers=tuple(replace(producer, metadata_epoch=True) for producer in alone.producers))
    assert "metadata_epochs" in tables_left(kept)


@pytest.mark.simulated
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EACH_CHANGE else pytest.mark.nightly) for name in ALL]
)
def test_run_writes_tables_of_its_load(name: str) -> None:
    _, world = play_seed(ALL[name], seed=7)
    left = {ROW_TABLES[type(row)].name for rows in world.history.tables for row in rows} & SELDOM
    assert left <= tables_left(ALL[name].load)
    assert tables_left(ALL[name].load) - left <= MAY_BE_ABSENT
