"""Red cells, and their description on the pages."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.probe.case import PREPARING, CaseOutcome, CaseVerdict
from bench.probe.cases import all_cases, chosen
from bench.targets.loader import find
from campaigns.evidence import kept, pages, plays
from campaigns.evidence.evidence_command import targets
from campaigns.evidence.plays import NOT_JUDGED, Cell, Play, cell

(CASE,) = chosen([], ["fetch/session/wrong-epoch"])
(SHOULD,) = chosen([], ["fetch/session/open"])


def _outcome(verdict: CaseVerdict, reason: str = "why") -> CaseOutcome:
    return CaseOutcome(CASE, verdict, reason, 0.1)


FAIL, PASS = _outcome(CaseVerdict.FAIL), _outcome(CaseVerdict.PASS, "")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([FAIL, FAIL, FAIL], "fail"),
        ([FAIL, FAIL, _outcome(CaseVerdict.INCONSISTENT)], "inconsistent"),
        ([PASS, PASS, PASS], "pass"),
        ([FAIL, PASS, FAIL], NOT_JUDGED),
        ([FAIL, FAIL, None], NOT_JUDGED),
        ([FAIL, FAIL, _outcome(CaseVerdict.OUR_ERROR)], NOT_JUDGED),
        ([_outcome(CaseVerdict.INCONSISTENT, f"{PREPARING}no topic can be made")] * 3, NOT_JUDGED),
    ],
)
def test_cell_is_red_only_if_each_play_was(outcomes: Sequence[CaseOutcome | None], verdict: str) -> None:
    assert cell(outcomes).verdict == verdict


def test_red_cell_has_result_and_repeat_command(tmp_path: Path) -> None:
    seen = kept.seen(find("kfake"), tmp_path / "data")
    seen.cases = {CASE.id: Cell("fail", "error code is NONE"), SHOULD.id: Cell("inconsistent", "it hung up")}
    kept.keep(seen, tmp_path / "data")
    (tmp_path / "README.md").write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    pages.write(kept.everything(tmp_path / "data"), tmp_path)
    page = (tmp_path / "probe-kfake.md").read_text()
    assert "Fails a MUST: 1" in page
    assert "Differs from a SHOULD: 1" in page
    assert "What came: error code is NONE" in page
    assert f"./crucible probe kfake --case {CASE.id}\n" in page
    assert "[**fails**](probe-kfake.md#fetchsessionwrong-epoch)" in (tmp_path / "probe.md").read_text()
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "old" not in readme


def test_scenarios_are_in_the_order_of_their_numbers() -> None:
    seen = kept.EvidenceTarget("kfake", "kfake", "1")
    seen.scenarios = {name: Play("passed", "", f"run {name}") for name in ("mirror", "14", "2", "demo")}
    page = pages.scenario_matrix([seen])
    rows = [line.split(" | ")[0].strip("| ") for line in page.splitlines() if line.startswith("| ")]
    assert rows[2:] == ["2", "14", "demo", "mirror"]
    assert [line.split(":")[0] for line in page.splitlines() if line.startswith("- ")] == [
        "- 2",
        "- 14",
        "- demo",
        "- mirror",
    ]


def test_unjudged_cells_have_one_mark() -> None:
    seen = kept.seen(find("kfake"), Path("nowhere"))
    seen.cases = {CASE.id: Cell(NOT_JUDGED), SHOULD.id: Cell("not advertised")}
    assert {pages.mark(seen, CASE), pages.mark(seen, SHOULD)} == {pages.NOTHING}


def test_unplayed_cells_are_counted_separately_from_unjudged() -> None:
    seen = kept.seen(find("kfake"), Path("nowhere"))
    seen.cases = {each.id: Cell("pass") for each in all_cases()}
    seen.cases |= {CASE.id: Cell(NOT_JUDGED), SHOULD.id: Cell("not played")}
    newer = next(each for each in all_cases() if each not in (CASE, SHOULD))
    del seen.cases[newer.id]
    heads, _, row = (line.split(" | ") for line in pages.summary([seen]).splitlines())
    cells = dict(zip(heads, row, strict=True))
    assert (cells["not judged"], cells["not played"], cells["passes"]) == ("1", "2", str(len(all_cases()) - 3))
    assert pages.mark(seen, newer) == pages.mark(seen, SHOULD) == pages.UNPLAYED


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["PASSED"], plays.PASSED),
        (["FAILED", "FAILED", "FAILED"], plays.FAILED),
        (["FAILED", "PASSED"], plays.NOT_JUDGED),
        (["INVALID", "INVALID", "PASSED"], plays.PASSED),
        (["INVALID", "FAILED", "FAILED"], plays.NOT_JUDGED),
        (["INVALID"] * 3, plays.NOT_JUDGED),
        (["crucible: no Java"] * 3, plays.NOT_JUDGED),
    ],
)
def test_scenario_failed_only_if_it_did_each_time(words: list[str], verdict: str) -> None:
    left = list(words)

    def run(_: Sequence[str], __: float) -> tuple[int, str]:
        return 0, f"{left.pop(0)}: what was seen\n  report: x"

    play = plays.played(find("kfake"), ["plain-load"], lambda *_: "", run)["plain-load"]
    assert (play.verdict, left) == (verdict, [])
    assert play.command == "./crucible run plain-load --target kfake"


def test_own_broker_is_external_target_and_pass_lists_fired_faults() -> None:
    def run(words: Sequence[str], _: float) -> tuple[int, str]:
        assert words[words.index("--target") + 1] == "reference.toml"
        return 0, "PASSED: all held, under 1 fault with 2 hits.\n"

    play = plays.played(find("reference"), ["2"], lambda *_: "", run)["2"]
    assert play.command == "./crucible run 2 --target reference.toml"
    assert play.reason == "all held, under 1 fault with 2 hits."


def test_only_failed_cells_are_repeated() -> None:
    played: list[Sequence[str]] = []

    def run(words: Sequence[str], _: float) -> tuple[int, str]:
        played.append(words[1 : words.index("--target")])
        return 1, "".join(f"{'FAILED' if name == 'b' else 'PASSED'}: seen\n" for name in played[-1])

    refusal = {"c": "it lacks replicas"}
    outcomes = plays.played(find("kfake"), ["a", "b", "c"], lambda name, _: refusal.get(name, ""), run)
    assert played == [["a", "b"], ["b"], ["b"]]
    verdicts = {name: play.verdict for name, play in outcomes.items()}
    assert verdicts == {"a": plays.PASSED, "b": plays.FAILED, "c": plays.REFUSED}
    assert outcomes["c"].reason == "it lacks replicas"


def test_slow_builds_are_played_only_on_request() -> None:
    names = {target.text for target in targets(())}
    assert {"kfake", "kafka@4.1.1", "kafka@4.3.1"} <= names
    assert "tansu" not in names
    assert [target.text for target in targets(["tansu"])] == ["tansu"]


def test_pages_match_kept_results(tmp_path: Path) -> None:
    """After targets are played again, their pages must be committed, too."""
    (tmp_path / "README.md").write_text((kept.FOLDER / "README.md").read_text())
    for path in pages.write(kept.everything(), tmp_path):
        assert path.read_text() == (kept.FOLDER / path.name).read_text(), path.name
