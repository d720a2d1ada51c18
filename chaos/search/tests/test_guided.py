"""Guided search: recipes, the corpus, and that everything follows from the seed."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chaos.mutants import mutants_of
from chaos.search import guided
from chaos.search.guided import (
    CORPUS,
    FEATURE_LEVELS,
    Corpus,
    GuidedSearch,
    Recipe,
    features_of,
    read_corpus,
    recipes_near,
    scheduled,
)
from chaos.search.write_scenario import text_of
from chaos.sim.decision_counts import watch
from chaos.sim.one_seed import play_seed
from chaos.sim.swarm import SETTINGS
from crucible_kafka.commands.sim import sim
from reference_broker.configuration.broker_config import BrokerConfig
from scenarios import loader
from scenarios.decision_points import declared_points
from scenarios.model import Scenario
from scenarios.vocabulary import PARTITION_ROLES, SAME_NODE

pytestmark = pytest.mark.simulated

SWARMS = [each for each in loader.load_all() if each.swarm is not None]


def short() -> Scenario:
    """Return a scenario that is played in a tenth of a second."""
    scenario = next(each for each in loader.load_all() if each.name == "01-lost-response")
    return replace(scenario, revisions=("final",))


@given(st.sampled_from(SWARMS), st.integers(0, 1000), st.lists(st.integers(0, 2**31), max_size=12))
@example(next(swarm for swarm in SWARMS if swarm.name == "swarm-groups"), 333, [158, 2, 60125])
@settings(max_examples=60, deadline=None)
def test_every_changed_schedule_is_a_loadable_scenario(scenario: Scenario, seed: int, changes: list[int]) -> None:
    changed = scheduled(scenario, seed, changes)
    assert scheduled(scenario, seed, changes) == changed, "a recipe always names the same schedule"
    path = Path(changed.path)
    read = loader.parse(tomllib.loads(text_of(changed)), path)
    assert read.faults == changed.faults
    assert read.cluster == changed.cluster


def test_changes_draw_features_other_clients_and_replicas_of_a_partition() -> None:
    swarm = next(each for each in SWARMS if each.name == "swarm-replicated")
    features, roles, versions = set[str](), set[object](), set[int]()
    for number in range(300):
        changed = scheduled(swarm, 1, [number])
        features |= {fault.feature for fault in changed.faults if fault.feature}
        roles |= {fault.node for fault in changed.faults if fault.after}
        versions |= {fetcher.newest_version for fetcher in changed.load.fetchers if fetcher not in swarm.load.fetchers}
    assert features == set(FEATURE_LEVELS)
    assert {SAME_NODE, "leader", *PARTITION_ROLES} <= roles
    assert len(versions) > 5


def test_changed_schedule_need_not_reach_the_points_of_its_scenario() -> None:
    scenario = replace(short(), points=("session-epoch=another",))
    assert scheduled(scenario, 1, ()).points == scenario.points
    assert scheduled(scenario, 1, (7,)).points == ()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_drawn_setting_is_one_of_the_broker(name: str) -> None:
    for value in SETTINGS[name]:
        BrokerConfig.parse({name: value})


def test_faults_that_a_scenario_needs_stay() -> None:
    scenario = short()
    needed = {fault for fault in scenario.faults if not fault.optional}
    for number in range(60):
        assert needed <= set(scheduled(scenario, 1, (number, number + 1, number + 2)).faults)


def test_only_schedules_with_new_outcomes_are_kept(tmp_path: Path) -> None:
    watch()
    verdict = play_seed(short(), 1).verdict
    corpus = Corpus(tmp_path)
    assert corpus.take(Recipe("01", 1), verdict)
    assert not corpus.take(Recipe("01", 2), verdict)
    assert corpus.seen == features_of(verdict)
    again, old = read_corpus(tmp_path)
    assert (again.entries, again.seen, old) == (corpus.entries, corpus.seen, [])


def test_recipes_of_other_points_are_played_again(tmp_path: Path) -> None:
    watch()
    corpus = Corpus(tmp_path)
    corpus.take(Recipe("01", 1, (3, 4)), play_seed(short(), 1).verdict)
    path = tmp_path / CORPUS
    path.write_text(json.dumps({**json.loads(path.read_text()), "points": "others"}) + "\n")
    corpus, old = read_corpus(tmp_path)
    assert (corpus.entries, old) == ([], [Recipe("01", 1, (3, 4))])


def test_search_follows_from_its_seed_and_goes_on_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guided, "ROUND", 4)

    def found(folder: Path, rounds: int, processes: int) -> list[Recipe]:
        corpus, again = read_corpus(folder)
        search = GuidedSearch([short()], 3, corpus, processes, again=again)
        return [schedule.recipe for schedule in search.play_schedules(rounds * 4)]

    whole = found(tmp_path / "whole", 2, 2)
    parts = [*found(tmp_path / "parts", 1, 1), *found(tmp_path / "parts", 1, 2)]
    assert len(whole) == 2 * 4
    assert whole == parts
    assert read_corpus(tmp_path / "whole")[0].rounds == read_corpus(tmp_path / "parts")[0].rounds == 2


def test_recipes_near_a_file_reach_its_points() -> None:
    watch()
    corpus = Corpus()
    corpus.take(Recipe("01", 1), play_seed(short(), 1).verdict)
    reached = {declared_points()[place // 2].path for place in corpus.reached}
    assert reached
    assert all(recipes_near(corpus, path) == [Recipe("01", 1)] for path in reached)
    assert recipes_near(corpus, "reference_broker/no_such_file.py") == []


def test_guided_search_kills_a_mutant_and_says_how_to_repeat_it() -> None:
    mutant = mutants_of(short())[0]
    arguments = ["1", "--revision", "final", "--guided", "--seeds", "32", "--mutant", mutant]
    result = CliRunner().invoke(sim, arguments)
    assert result.exit_code == 1, result.output
    assert "repeat with: ./crucible sim" in result.output
    assert f"--mutant {mutant}" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1", "--changes", "1,x", "--seed", "1"], "must be numbers"),
        (["1", "--changes", "1"], "give --seed"),
        (["1", "--near", "reference_broker/log/recovery.py"], "--guided"),
        (["1", "--guided", "--profile", "--seeds", "4"], "a search of its own"),
        (["1", "--guided", "--seed", "1", "--changes", "1"], "--changes are of a single seed"),
        (["1", "--seeds", "3", "--seed", "2", "--out", "x"], "--out writes a single seed's run"),
        (["1", "--profile"], "--profile measures a search"),
        (["1", "--seconds", "5", "--seeds", "2"], "--seconds is a search of its own"),
        (["1", "--at", "3"], "--at and --show belong together"),
        (["1", "--at", "3", "--show", "0", "--seeds", "9"], "--at is an event of a single seed"),
        (["1", "2", "--at", "3", "--show", "0", "--seed", "1"], "--at is an event of a single scenario"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(sim, arguments)
    assert result.exit_code == 2
    assert message in result.output
