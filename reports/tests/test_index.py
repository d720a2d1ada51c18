"""The index over a month of planted nights: what it shows of each thing that was planted, and a page that is whole."""

import re
from pathlib import Path
from typing import Any

import pytest

from reports.index.failures import open_failures
from reports.index.matrix import Line
from reports.index.nights import Collected, NightSummary, collect_nights, read_notes, summarize_nights
from reports.index.write import context_of, write_index
from reports.jobs import nights
from reports.jobs.nights import still_open_failures
from reports.night import ANNOTATIONS_NAME, NightError, night_folders, read_night
from reports.tests import planted_nights as truth
from reports.tests.planted_nights import Planted, plant

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return plant(tmp_path_factory.mktemp("nights"))


@pytest.fixture(scope="module")
def collected(spark: Any, planted: Planted) -> Collected:
    return collect_nights(night_folders(planted.root), spark)


@pytest.fixture(scope="module")
def shown(collected: Collected, planted: Planted) -> dict[str, Any]:
    notes = read_notes(planted.root)
    return context_of(collected, _summaries(collected, planted, planted.soon_us), notes, planted.root, planted.root)


def _summaries(collected: Collected, planted: Planted, now_us: int) -> list[NightSummary]:
    return summarize_nights([read_night(folder) for folder in planted.folders], collected.counts, now_us)


def _night(every: list[NightSummary], number: int) -> NightSummary:
    """The planted night with this number; one is missing."""
    return every[number - (number > truth.MISSING)]


def _line(shown: dict[str, Any], scenario: str, target: str = "reference") -> Line:
    lines: list[Line] = shown["lines"]
    return next(line for line in lines if (line.scenario, line.target) == (scenario, target))


def test_each_night_is_red_for_its_planted_failure(collected: Collected, planted: Planted) -> None:
    every = _summaries(collected, planted, planted.soon_us)
    assert len(every) == truth.NIGHTS - 1
    lives, stopped = (_night(every, number) for number in (truth.CANARY_LIVES, truth.STOPPED))
    assert any("the canary lives: nothing killed no_abort in 40 seeds" in reason for reason in lives.reasons)
    assert any("less than half the median" in reason for reason in stopped.reasons)
    assert any("control" in reason and "FAILED" in reason for reason in _night(every, truth.MENDED[0]).reasons)
    green = [summary for summary in every if not summary.is_red]
    assert green
    assert "the canary no_abort was found after 3 seeds" in green[0].line
    assert [summary.gap_hours > 36 for summary in every].index(True) == truth.MISSING


def test_stale_night_is_red_only_if_it_is_the_newest_and_older_than_36_hours(
    collected: Collected, planted: Planted
) -> None:
    soon, late = (_summaries(collected, planted, now_us) for now_us in (planted.soon_us, planted.late_us))
    assert not any("hours ago" in reason for one in soon for reason in one.reasons)
    assert ["hours ago" in " ".join(each.reasons) for each in late] == [False] * (len(late) - 1) + [True]


def test_cells_lead_to_the_page_of_their_run_or_to_a_detail(shown: dict[str, Any], planted: Planted) -> None:
    flaky = _line(shown, truth.FLAKY)
    assert {cell.tone for cell in flaky.cells if cell} >= {"passed", "mixed"}
    direct = [cell for cell in flaky.cells if cell and cell.href]
    assert direct
    assert all((planted.root / cell.href).is_file() for cell in direct)
    several = [cell for cell in flaky.cells if cell and len(cell.runs) > 1]
    assert not any(cell.href for cell in several)
    regressed = _line(shown, truth.REGRESSED)
    assert not regressed.is_steady
    first = regressed.cells[truth.REGRESSION_FROM - 1]
    assert first is not None
    assert first.tone == "mixed"
    assert first.counts == "12 passed, 1 failed"
    assert first.command == f"./crucible sim {truth.REGRESSED} --seed {truth.REGRESSION_SEED}"
    steady = _line(shown, "kill-under-load", "kafka@4.1.1")
    assert steady.is_steady
    assert steady.cells[truth.STOPPED - 1] is None  # Its plays had not come yet.


def test_failure_is_open_until_its_seed_passes_again(shown: dict[str, Any]) -> None:
    (failure,) = shown["failures"]
    assert failure.row["scenario"] == truth.REGRESSED
    assert failure.row["seed"] == truth.REGRESSION_SEED + 4
    assert failure.row["first_bad_commit"] == truth.BAD_COMMIT
    assert failure.age == "6 nights, 5 days"
    assert failure.seen.startswith("In 3 nights, with 3 seeds. Since then 0 of 12 plays")
    assert failure.seen.endswith("Its seed was played again, and broke it again.")
    assert not failure.is_gone, "twelve plays exclude nothing"
    assert failure.live == "1 of 3 red: a rate from 6.1 % to 79 %"
    assert len(failure.faults) == 2


def test_mended_failure_stays_so_when_its_replay_is_older_than_the_plays_that_are_read(
    spark: Any, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(nights._READ, "plays", 5)
    tables = nights.read_nights(spark, night_folders(planted.root))
    assert not tables.plays.where("is_replay and outcome = 'PASSED'").count()
    scenarios = {row["scenario"] for row in still_open_failures(tables).collect()}
    assert scenarios == {truth.REGRESSED}


def test_vanished_failure_is_probably_fixed_once_its_rate_is_excluded(collected: Collected, planted: Planted) -> None:
    (row,) = collected.failures
    assert row["plays"] == 63
    assert row["violations"] == 3
    every = _summaries(collected, planted, planted.soon_us)

    def is_gone(**changes: int) -> bool:
        (failure,) = open_failures([{**row, **changes}], every, lambda *_: "")
        return failure.is_gone

    assert row["still_breaks"]
    assert not is_gone(plays_since=300)
    row = {**row, "still_breaks": False}
    assert not is_gone(plays_since=200)
    assert is_gone(plays_since=300)
    assert not is_gone(plays_since=300, violations_since=1)
    assert not is_gone(plays_since=300, violations=0)


def test_only_uncertain_failures_have_rate(shown: dict[str, Any]) -> None:
    rates = {(rate.line.scenario, rate.line.target): rate for rate in shown["rates"]}
    flaky = rates[truth.FLAKY, "reference"]
    assert flaky.low < 1 / 3 < flaky.high
    assert flaky is shown["rates"][0]
    assert rates["plain-load", "reference"].low == 0.0
    assert 0.02 < rates["plain-load", "reference"].high < 0.06
    assert ("swarm", "reference") not in rates


def test_step_in_a_figure_is_found_in_its_night_and_nothing_else(shown: dict[str, Any], planted: Planted) -> None:
    (change,) = shown["changes"]
    assert change.series.row == "produce"
    assert change.series.what == "acks=all, p99"
    assert change.word == "worse"
    steps = [folder.name for folder in planted.folders]
    assert abs(steps.index(change.night) - (truth.STEP_AT - 1)) <= 1
    assert change.new == pytest.approx(truth.STEP_TO, rel=0.03)
    assert {each.row for each in shown["series"]} == {"produce", "fetch", "failover"}, (
        "figures without a peer have none"
    )
    notes = {picture.row: [note.text for note in picture.notes] for picture in shown["pictures"]}
    assert len(notes["produce"]) == 2
    assert len(notes["fetch"]) == 1


def test_probe_marks_changes_since_previous_night(shown: dict[str, Any]) -> None:
    changed = {
        (change.target, change.case_id): (change.word, change.was, change.now) for change in shown["probe"].changes
    }
    assert changed.pop(("kafka@4.1.1", "fetch/session/case-03")) == ("worse", "pass", "differs")
    assert {key: word for key, (word, _, _) in changed.items()} == {
        (target, "groups/join/case-09"): "new" for target in ("reference", "kafka@4.1.1", "kfake")
    }
    cells = {
        (line.section, target): cell
        for line in shown["probe"].lines
        for target, cell in zip(shown["probe"].targets, line.cells, strict=True)
    }
    assert cells["fetch/session", "kafka@4.1.1"].tone == "mixed"
    assert cells["fetch/session", "kfake"].tone == "failed"
    assert cells["transactions", "kfake"].sign == "–"
    assert cells["transactions", "kfake"].judged == 0
    (case,) = cells["fetch/session", "kafka@4.1.1"].failed
    assert case.case_id == "fetch/session/case-03"
    assert case.level == "SHOULD"
    assert case.outcome == "differs"
    assert case.command == "./crucible probe kafka@4.1.1 --case fetch/session/case-03"
    assert {cell.tone for cell in cells.values() if cell is not None and not cell.failed} == {"passed", "none"}


def test_clients_have_a_table_of_their_own(shown: dict[str, Any]) -> None:
    table = shown["clients"]
    assert table.targets == ("client kafka-python", "client own")
    assert [(change.target, change.case_id, change.word) for change in table.changes] == [
        ("client kafka-python", "sessions/response-lost", "worse")
    ]
    ((red, green),) = (line.cells for line in table.lines)
    assert red.sign == "✕"
    assert red.passed == 1
    assert red.judged == 2
    assert green.sign == "✓"
    assert green.passed == 2
    assert green.judged == 2
    (case,) = red.failed
    assert case.command == "./crucible client kafka-python --case sessions/response-lost"


def test_page_is_self_contained_and_links_are_valid(
    planted: Planted, collected: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.index.write.collect_nights", lambda *_: collected)
    page, last = write_index(planted.root, tmp_path / "site" / "nights.html", planted.late_us)
    text = page.read_text(encoding="utf-8")
    assert page == tmp_path / "site" / "nights.html"
    assert last.is_red
    links = re.findall(r'href="([^"]+)"', text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    cells = [link for link in links if re.fullmatch(r"#c\d+-\d+", link)]
    assert len(cells) > 200
    assert {link[1:] for link in links if link.startswith("#") and link not in cells} <= set(ids)
    outside = [link for link in links if not link.startswith("#")]
    assert outside
    assert all((page.parent / link).is_file() for link in outside)
    assert not re.search(r"(?:src|href)=[\"']https?:|url\(https?:|@import", text.replace("http://www.w3.org", ""))
    assert "&lt;kernel&gt;" in text
    assert "<kernel>" not in text
    assert "<orders>" not in text


def test_only_red_or_changed_sections_are_open(
    planted: Planted, collected: Collected, shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.index.write.collect_nights", lambda *_: collected)
    page, _ = write_index(planted.root, tmp_path, planted.late_us)
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<details[^>]* open", text)
    unfolded = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    matrix, rates, probed, of_clients = (
        re.findall(r"<tr>\s*<th scope=.*?</tr>", unfolded.partition(f'id="{name}"')[2].partition("<h2")[0], re.DOTALL)
        for name in ("nights", "rates", "probe", "clients")
    )
    assert len(matrix) == sum(not line.is_steady for line in shown["lines"]) > 0
    assert all(re.search(r"t-(failed|mixed|invalid|crashed)", row) for row in matrix)
    assert len(rates) == sum(bool(rate.rate) for rate in shown["rates"]) > 0
    assert len(rates) < len(shown["rates"])
    for rows, table in ((probed, shown["probe"]), (of_clients, shown["clients"])):
        assert len(rows) - len(table.changes) == sum(not line.is_steady for line in table.lines) > 0
    assert all(re.search(r"t-(failed|mixed|none)|moved|chip", row) for row in probed)
    folded = re.findall(r"<details class=\"steady\">.*?</details>", text, re.DOTALL)
    assert len(folded) == 2 + any(line.is_steady for line in shown["probe"].lines)


def test_fixable_error_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.index.write.collect_nights", lambda *_: pytest.fail("Spark was started for nothing"))
    with pytest.raises(NightError, match=r"has no nights: \./crucible nightly"):
        write_index(tmp_path / "nights")
    (tmp_path / ANNOTATIONS_NAME).write_text("[[note]]\nat = 2026-11-28\ntxt = 'no'\n", encoding="utf-8")
    with pytest.raises(NightError, match=r"annotations.toml cannot be read .* each note is \[\[note\]\]"):
        read_notes(tmp_path)
    (tmp_path / ANNOTATIONS_NAME).unlink()
    (tmp_path / "20261128-220000").mkdir()
    (tmp_path / "20261128-220000" / "night.json").write_text("{", encoding="utf-8")
    with pytest.raises(NightError, match=r"night\.json cannot be read"):
        write_index(tmp_path)
