"""Each kind of difference between the two verdicts on a run is reported."""

import sys
from pathlib import Path

import pytest

from reports.verdict import Anomaly, GuaranteeResult, Outcome, Status, Verdict
from tools import compare_verdicts
from tools.compare_verdicts import Compared, Done, Opinion, Played, Run, compare, differences, runs_of

RUN = Run("01-lost-response", "no_rotation", 7)
NAME = "lost-write"


def verdict(status: Status, at_us: int = 5, outcome: Outcome = Outcome.FAILED, judged_by: str = "history") -> Verdict:
    violation = Anomaly(NAME, "hot", 0, 3, "producer-0", 1, at_us, "", "a record is gone")
    examples = (violation,) if status.startswith("broken") else ()
    one = GuaranteeResult(NAME, "", status, True, 1, "records", len(examples), "", judged_by, examples)
    return Verdict(outcome, "", "", 7, "", Path(), "summary", (), (one,), "")


def played(opinion: Opinion, outcome: Outcome = Outcome.FAILED) -> Played:
    return Played(RUN, Path(), outcome, {NAME: opinion})


BROKEN = Opinion("broken", 5, "gone")


@pytest.mark.parametrize(
    ("opinion", "other", "words"),
    [
        (BROKEN, verdict("broken"), ""),
        (BROKEN, verdict("broken, not promised"), ""),
        (Opinion("holds"), verdict("holds"), ""),
        (Opinion("nothing to judge"), verdict("not checked"), ""),
        (Opinion("nothing to judge"), verdict("nothing to judge"), ""),
        (Opinion("holds"), verdict("broken", judged_by="simulator"), ""),
        (Opinion("nothing to judge"), verdict("broken", judged_by="simulator"), ""),
        (Opinion("nothing to judge"), verdict("holds", judged_by="simulator"), ""),
        (Opinion("holds"), verdict("holds", judged_by="simulator"), "says holds, Spark nothing to judge"),
        (BROKEN, verdict("broken", judged_by="simulator"), "says broken, Spark no violation"),
        (BROKEN, verdict("holds"), "says broken, Spark holds: gone"),
        (Opinion("holds"), verdict("broken"), "says holds, Spark broken: a record is gone"),
        (Opinion("nothing to judge"), verdict("holds"), "says nothing to judge, Spark holds"),
        (BROKEN, verdict("broken", at_us=6), "at 5 us in the simulator (gone), for Spark at 6 us (a record is gone)"),
        (BROKEN, verdict("broken", outcome=Outcome.PASSED), "says FAILED, Spark PASSED: summary"),
    ],
)
def test_each_difference_is_one_sentence(opinion: Opinion, other: Verdict, words: str) -> None:
    sentences = list(differences(played(opinion), other))
    if not words:
        assert sentences == []
        return
    (sentence,) = sentences
    assert words in sentence
    assert sentence.startswith("01-lost-response --seed 7 --mutant no_rotation: ")


def test_difference_that_only_one_side_can_see_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compare_verdicts.EXCUSED, (RUN.mutant, NAME), "nobody notes it")
    assert not list(differences(played(BROKEN), verdict("holds")))


def test_run_that_was_cut_short_is_compared_by_its_outcome() -> None:
    found = Compared()
    found.take(Played(RUN, Path(), Outcome.CRASHED, {}), verdict("broken", outcome=Outcome.CRASHED))
    found.take(played(BROKEN), verdict("holds"))
    counted = "2 runs: 1 guarantees compared (1 broken), 1 runs cut short and compared by their outcome only"
    assert str(found) == f"{counted}, 1 differences"


def test_runs_go_through_all_scenarios_seed_by_seed() -> None:
    runs = list(runs_of(["6", "plain-load"], range(3, 5)))
    assert runs[:2] == [Run("06-epoch-wrap", "", 3), Run("06-epoch-wrap", "epoch_overflows_to_negative", 3)]
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert {run.scenario for run in runs} >= {"06-epoch-wrap", "06-epoch-wrap@first", "plain-load"}


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--processes", "0")])
def test_nothing_to_play_is_refused(
    words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_verdicts", *words])
    with pytest.raises(SystemExit):
        compare_verdicts.main()
    assert "must be at least 1" in capsys.readouterr().err


def test_comparison_resumes(tmp_path: Path) -> None:
    file = tmp_path / "done.jsonl"
    other = RUN._replace(seed=8)
    first = Done(file)
    differing = first.note(played(BROKEN), verdict("holds"))
    first.note(Played(other, Path(), Outcome.CRASHED, {}), verdict("broken", outcome=Outcome.CRASHED))
    with file.open("a") as lines:
        lines.write('{"run": "cut o')
    again = Done(file)
    assert again.found == first.found
    assert again.found.differing == differing
    assert again.runs == {str(RUN), str(other)}
    assert compare([RUN, other], minutes=1, processes=1, done=again) == 0
