"""Selection of mutants for live plays, and the stored results. Nothing is played here."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chaos.mutants import all_mutants
from chaos.mutants.registry import FIRST_SEEDS, SIMULATED_ONLY
from reports.verdict import GuaranteeResult, Outcome, Status, Verdict
from scenarios import ledger, loader
from scenarios.ledger import MutantSearch
from tools.mutants_live import LiveSearch, search, searches

NAME = "no_rotation"
KEPT = {each.mutant: each for each in ledger.searches_in(ledger.KEPT["live"])}


def verdict(outcome: Outcome) -> Verdict:
    status: Status = "broken" if outcome is Outcome.FAILED else "holds"
    one = GuaranteeResult("lost-write", "", status, True, 1, "records", 0)
    return Verdict(outcome, "", "", 7, "", Path(), "", (), (one,), "")


def showing(*outcomes: Outcome | None) -> Callable[[Sequence[LiveSearch]], None]:
    """Return a judge whose plays show these, one after the other. None could not be set up."""
    shown = iter(outcomes)

    def judge(current: Sequence[LiveSearch]) -> None:
        for one in current:
            outcome = next(shown)
            one.take(None if outcome is None else verdict(outcome))

    return judge


def a_search() -> LiveSearch:
    return LiveSearch(NAME, loader.find("07-leader-moves-and-returns"))


PASSED, FAILED, INVALID, CRASHED = Outcome.PASSED, Outcome.FAILED, Outcome.INVALID, Outcome.CRASHED


@pytest.mark.parametrize(
    ("outcomes", "plays", "tries", "killed"),
    [
        ((FAILED,), 1, 1, True),
        ((PASSED, FAILED), 2, 2, True),
        ((PASSED, PASSED, PASSED), 3, 3, False),
        ((INVALID, CRASHED, None, FAILED), 4, 1, True),
        ((INVALID, PASSED, PASSED, PASSED), 4, 3, False),
    ],
)
def test_mutant_is_played_until_killed_and_empty_plays_do_not_count(
    outcomes: tuple[Outcome | None, ...], plays: int, tries: int, killed: bool
) -> None:
    one, kept = a_search(), list[LiveSearch]()
    assert search([one], 3, 1.0, showing(*outcomes), kept.append) == 0
    assert one.plays == plays
    assert one.tries == tries
    assert bool(one.guarantees) == killed
    assert kept == [one]


def test_mutant_without_conclusive_play_keeps_known_result() -> None:
    one, kept = a_search(), list[LiveSearch]()
    assert search([one], 2, 1.0, showing(None, INVALID, CRASHED, INVALID), kept.append) == 0
    assert (one.plays, kept) == (4, [])


def test_nothing_begins_when_the_time_is_over() -> None:
    assert search([a_search()], 3, 0.0, showing(), lambda _: None) == 1


@pytest.mark.thorough
def test_every_mutant_is_played_but_those_that_a_live_world_cannot_show() -> None:
    played_scenarios = {each.mutant: each.scenario for each in searches(())}
    assert set(played_scenarios) == {mutant.name for mutant in all_mutants()} - set(SIMULATED_ONLY)
    assert [each.mutant for each in searches([NAME])] == [NAME]
    assert played_scenarios["replaced_partitions_kept"].name == "04-forget-cut@first"


@pytest.mark.thorough
def test_search_begins_where_the_mutant_is_known_to_show() -> None:
    one, other = (searches([name])[0] for name in ("abort_without_bootstrap", NAME))
    assert (one.next_seed, other.next_seed) == (FIRST_SEEDS["abort_without_bootstrap"], 1)
    one.take(None)
    assert one.next_seed == FIRST_SEEDS["abort_without_bootstrap"] + 1
    assert {mutant.name for mutant in all_mutants()} >= set(FIRST_SEEDS)


def test_kill_replaces_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ledger.KEPT, "live", tmp_path / "kept.jsonl")
    monkeypatch.setattr(ledger, "FILE", tmp_path / "runs" / "mutants.jsonl")
    other = MutantSearch("epoch_not_sent", "01-lost-response", "live", 1, ("fetch-gap",), "abc")
    newer = MutantSearch(NAME, "07-leader-moves-and-returns", "live", 2, ("no-starvation",), "abc")
    for each in (MutantSearch(NAME, "07-leader-moves-and-returns", "live", 3, ()), other, newer):
        ledger.keep(each)
    assert list(ledger.searches_in(ledger.KEPT["live"])) == [other, newer]
    assert ledger.last()[NAME, "live"] == newer
    assert json.loads(ledger.KEPT["live"].read_text().splitlines()[1])["seeds"] == 2
