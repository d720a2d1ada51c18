"""Results that stages derive from the processes that they start. Only a fork that probes is started here."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import conftest
from bench.probe.cases import all_cases
from bench.rows.results import Figure, Results
from bench.targets.model import Chosen, TargetError
from campaigns.evidence.plays import Cell
from campaigns.nights import follow_up, live_plays, nights_command, processes
from campaigns.nights.night import SHARES, Skipped, Work
from campaigns.nights.processes import OVER, Done
from campaigns.nights.stages import bench, brokers, checks, clients, live
from campaigns.nights.tests.small_nights import a_play, work_of
from campaigns.suites.suite import bundled
from reports.night import CellRow, FailureRow, FigureRow, NightStage
from reports.verdict import Outcome
from scenarios import loader
from scenarios.revisions import each_revision

STAGES = tuple(NightStage(name=share, planned_s=0.0) for share in SHARES)
LONG_S = 10_000.0
Ran = list[list[str]]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return work_of(tmp_path / "20260101-000000", stages=STAGES)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str]], Done]], Ran]:
    """Let every command do this instead, and return the commands."""

    def instead(do: Callable[[list[str]], Done]) -> Ran:
        ran: Ran = []

        def run(command: Sequence[str], *_: object, **__: object) -> Done:
            ran.append(list(command))
            return do(ran[-1])

        monkeypatch.setattr(processes, "run", run)
        return ran

    return instead


def out_of(command: list[str]) -> Path:
    return Path(command[command.index("--out") + 1])


def judged(outcome: str, broken: str = "") -> Callable[[list[str]], Done]:
    """A ``crucible run`` that leaves this verdict."""

    def run(command: list[str]) -> Done:
        folder = out_of(command)
        for each in ("data", "report"):
            (folder / each).mkdir(parents=True)
        (folder / "manifest.json").touch()
        guarantees = [{"name": "unseen", "status": "holds"}, {"name": broken, "status": "broken"}][: 1 + bool(broken)]
        verdict = {"outcome": outcome, "summary": "as it is", "guarantees": guarantees}
        (folder / "report" / "verdict.json").write_text(json.dumps(verdict))
        return Done(0, "")

    return run


def left_in(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_live_night_plays_controls_and_mutants_in_turn() -> None:
    scenarios = {each.name: each for file in loader.load_all() for each in each_revision(file)}
    tonight = live.plan(scenarios, [], 5)
    controls = [each for each in tonight if " " not in each]
    assert [" " in each for each in tonight[:6]] == [False, False, True, False, False, True]
    assert len(tonight) == len(set(tonight)) > 150
    assert "swarm" not in controls  # Its faults are drawn in the simulator only.
    tomorrow = live.plan(scenarios, [tonight[:30]], 5)
    assert not set(tomorrow[:30]) & set(tonight[:30])


@pytest.mark.parametrize(
    ("outcome", "broken", "mutant", "left"),
    [
        ("PASSED", "", "", {"manifest.json", "report"}),
        ("FAILED", "lost-write", "", {"manifest.json", "report", "data"}),
        ("FAILED", "lost-write", "no_rotation", {"manifest.json", "report"}),
        ("PASSED", "", "no_rotation", {"manifest.json", "report", "data"}),
    ],
)
def test_live_play_is_row_and_expected_result_keeps_only_report(
    outcome: str, broken: str, mutant: str, left: set[str], work: Work, running: Callable[..., Ran]
) -> None:
    ran = running(judged(outcome, broken))
    row = live_plays.next_of(work, loader.find("1"), time.monotonic() + LONG_S, mutant)
    assert row is not None
    assert row.outcome == outcome
    assert row.guarantee == broken
    assert row.mutant == mutant
    assert row.seed == work.night.seed
    assert left_in(work.folder / row.run_dir) == left
    again = live_plays.next_of(work, loader.find("1"), time.monotonic() + LONG_S, mutant)
    assert again is not None
    assert again.seed == work.night.seed + 1
    assert work.plays == [row, again]
    assert all("--revision final" in " ".join(command) for command in ran), "one play has one verdict"


def test_play_that_could_not_begin_or_had_no_time_is_no_play_and_one_that_hangs_is_a_crash(
    work: Work, running: Callable[..., Ran]
) -> None:
    for code, left_s in ((live_plays.USAGE_ERROR, LONG_S), (OVER, 5.0)):
        running(lambda _, code=code: Done(code, "crucible: no"))
        assert live_plays.next_of(work, loader.find("1"), time.monotonic() + left_s) is None
    running(lambda _: Done(OVER, "last words"))
    row = live_plays.next_of(work, loader.find("1"), time.monotonic() + LONG_S)
    assert row is not None
    assert row.outcome == "CRASHED"
    assert row.detail == "last words"
    assert row.run_dir == ""


def test_live_plays_need_java_and_time(
    work: Work, running: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = running(judged("PASSED"))
    with pytest.raises(Skipped, match="there is no Java here"):
        live.play(work, time.monotonic() + LONG_S)
    monkeypatch.setattr(live_plays, "check_machine", lambda: None)
    work.begin("live", 1.0)
    assert live.play(work, time.monotonic() + 1.0) == (Outcome.PASSED, "")
    assert ran == []


def test_red_live_control_is_played_again_and_kept_as_a_failure(
    work: Work, running: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_plays, "check_machine", lambda: None)
    scenarios = {"01-lost-response": loader.find("1")}
    work.add(a_play(scenario="01-lost-response", world="live", outcome="FAILED", guarantee="lost-write", seed=5))
    ran = running(judged("PASSED"))
    follow_up.of_all(work, scenarios, time.monotonic() + LONG_S)
    (failure,) = work.failures
    assert failure.live_plays == 3
    assert failure.live_reds == 0
    assert failure.regression == ""
    assert failure.seed == 5
    assert "response_lost" in failure.faults
    assert all(each[each.index("--seed") + 1] == "5" for each in ran)
    assert follow_up.open_reds(work) == []


def test_failure_without_time_for_shrinking_is_kept_as_found(work: Work) -> None:
    reds = [a_play(outcome="FAILED", guarantee="unseen", seed=each, detail="gone") for each in (4, 5)]
    others = [a_play(outcome="INVALID"), a_play(mutant="m", outcome="FAILED"), a_play(target="kfake", outcome="FAILED")]
    work.add(*reds, *others)
    follow_up.of_all(work, {}, time.monotonic() - 1.0)
    follow_up.note_the_rest(work)
    failures = [(failure.guarantee, failure.seed, failure.detail) for failure in work.failures]
    assert failures == [
        ("unseen", 4, "gone; there was no time to look into it"),
        ("INVALID", 1, "there was no time to look into it"),
    ]
    assert all(isinstance(failure, FailureRow) for failure in work.failures)


@pytest.mark.simulated
def test_unavailable_brokers_are_skipped_without_red_night(
    work: Work, running: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {each.id: Cell("pass") for each in all_cases()}

    def probed(chosen: Chosen, *_: object) -> tuple[dict[str, Cell], int]:
        if "kafka@" in chosen.text:
            raise TargetError("there is no Maven here")
        return cells, 0

    monkeypatch.setattr(brokers, "probed", probed)
    monkeypatch.setattr(brokers, "_scenarios", lambda: [loader.find("plain-load")])
    running(judged("FAILED", "lost-write"))
    work.begin("brokers", LONG_S)
    outcome, detail = brokers.play(work, time.monotonic() + LONG_S)
    assert outcome is Outcome.PASSED
    assert detail.count("there is no Maven here") == 2
    rows = work.journal.of(CellRow)
    assert {row.target for row in rows} == {"kfake", "librdkafka-mock", "reference"}
    assert len(rows) == 3 * len(cells)
    assert {row.level for row in rows} == {"MUST", "SHOULD"}
    assert work.plays
    assert {play.target for play in work.plays} <= {"kfake", "librdkafka-mock", "kafka@4.1.1", "kafka@4.3.1"}
    assert follow_up.open_reds(work) == []


def test_clients_are_played_in_turn_and_their_cases_are_cells(work: Work, running: Callable[..., Ran]) -> None:
    case = {"id": "sessions/declined", "level": "MUST", "verdict": "fail"}
    broken = {"id": "groups/join", "level": "SHOULD", "verdict": "our error"}

    def play(command: list[str]) -> Done:
        name = command[command.index("client") + 1]
        if name == "own":
            return Done(1, "own cannot be built")
        cases = [case, broken] if name == "aiokafka" else [case]
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"cases": cases}))
        return Done(1, "")

    ran = running(play)
    work.begin("clients", LONG_S)
    outcome, detail = clients.play(work, time.monotonic() + LONG_S)
    assert sorted(work.stage("clients").tried) == clients.bundled_clients()
    assert len(ran) == len(clients.bundled_clients())
    assert outcome is Outcome.FAILED
    assert "aiokafka: groups/join failed by itself" in detail
    assert "own was omitted: own cannot be built" in detail
    cells = work.journal.of(CellRow)
    assert {cell.target for cell in cells} == {
        f"client {client}" for client in clients.bundled_clients() if client != "own"
    }
    assert CellRow("client aiokafka", "sessions/declined", "sessions", "MUST", "fail") in cells
    assert follow_up.open_reds(work) == []


def test_clients_that_have_no_time_are_left_to_another_night(work: Work, running: Callable[..., Ran]) -> None:
    ran = running(lambda _: Done(OVER, ""))
    work.begin("clients", LONG_S)
    assert clients.play(work, time.monotonic() + clients.MIN_S / 2) == (Outcome.PASSED, "")
    assert ran == []
    assert clients.play(work, time.monotonic() + LONG_S) == (Outcome.PASSED, "")
    assert len(ran) == 1


def test_figure_has_direction_nodes_and_tolerance(
    work: Work, running: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results("kafka")
    results.beside("a rate", (Figure((10.0, 12.0), "k/s"), Figure((5.0, 4.0), "k/s")), less_is_better=False, nodes=3)
    results.beside("a time", (Figure((2.0,), "ms"), Figure((5.0,), "ms")), less_is_better=True)
    results.beside("alone", (Figure((1.0,), "s"), None), less_is_better=True)

    def measure(command: list[str]) -> Done:
        if "fetch" in command:
            return Done(2, "crucible: there is no Maven here")
        results.store(out_of(command))
        return Done(0, "")

    monkeypatch.setattr(bench, "ROWS", ("produce", "fetch"))
    monkeypatch.setattr(bench, "WORKLOADS", {})
    ran = running(measure)
    work.begin("bench", LONG_S)
    outcome, detail = bench.play(work, time.monotonic() + LONG_S)
    assert outcome == Outcome.PASSED
    assert detail == "fetch could not be measured: there is no Maven here"
    assert sorted(each[each.index("--row") + 1] for each in ran) == ["fetch", "produce"]
    assert work.journal.of(FigureRow) == [
        FigureRow("produce", "a rate", 3, "k/s", "higher", 11.0, 4.5, 2.5, 2.0, 3.0, 2, "kafka"),
        FigureRow("produce", "a time", 1, "ms", "lower", 2.0, 5.0, 2.5, 2.5, 2.5, 1, "kafka"),
    ]


def planted_series(target: str, **values: list[float]) -> dict[str, Any]:
    figures = [
        {"name": name, "unit": "ms", "less_is_better": name != "rate", "values": own} for name, own in values.items()
    ]
    return {"target": target, "reasons": [], "figures": figures}


def test_workload_played_on_both_brokers_is_a_row(
    work: Work, running: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROWS", ())
    monkeypatch.setattr(bench, "WORKLOADS", {"workload-a": "end-to-end-latency"})
    ours = planted_series("reference", rate=[4.0, 2.0, 6.0], latency=[1.0, 2.0, 4.0], lacking=[1.0], zero=[0.0])
    theirs = planted_series("kafka", rate=[2.0, 2.0, 2.0], latency=[2.0, 6.0, 4.0], lacking=[1.0, 2.0], zero=[1.0])
    theirs["reasons"] = ["The load generator was the limit"]

    def play(command: list[str]) -> Done:
        folder = out_of(command)
        folder.mkdir(parents=True)
        (folder / "0001-benchmarks.json").write_text(json.dumps({"crucible": [ours, theirs]}))
        (folder / "0002-0-reference.json").write_text("{}")
        return Done(3, "")

    ran = running(play)
    work.begin("bench", LONG_S)
    outcome, detail = bench.play(work, time.monotonic() + LONG_S)
    assert outcome is Outcome.PASSED
    assert detail == "workload-a could not be measured: The load generator was the limit"
    assert Path(ran[0][ran[0].index("bench") + 1]).is_file()
    assert work.journal.of(FigureRow) == [
        FigureRow("workload-a", "rate", 1, "ms", "higher", 4.0, 2.0, 2.0, 1.0, 3.0, 3, "kafka"),
        FigureRow("workload-a", "latency", 1, "ms", "lower", 2.0, 4.0, 2.0, 1.0, 3.0, 3, "kafka"),
    ]


def test_workloads_of_night_are_files() -> None:
    assert len(bench.WORKLOADS) == 2
    assert all(
        (processes.ROOT / "docs/workloads" / f"{workload}.yaml").is_file() for workload in bench.WORKLOADS.values()
    )


def test_checks_fail_by_exit_code_and_timeout_is_no_result(work: Work, running: Callable[..., Ran]) -> None:
    codes = iter((0, 1, 5, OVER))
    ran = running(lambda _: Done(next(codes), "1 failed"))
    work.begin("checks", LONG_S)
    outcome, detail = checks.play(work, time.monotonic() + LONG_S)
    tried = work.stage("checks").tried
    wrong = [
        name
        for name, code in zip(tried, (0, 1, 5, OVER), strict=True)
        if code == 1 or (code == 5 and "tests" not in name)
    ]
    assert outcome is Outcome.FAILED
    assert detail == "; ".join(f"{name}: 1 failed" for name in wrong)
    assert len(ran) == len(tried) == 4


def test_list_of_checks_is_complete() -> None:
    found: dict[str, Any] = checks.checks(7, 5.0)
    assert set(found) == {
        "quick tests",
        "live tests",
        "tests with Spark",
        "nightly tests",
        "power losses",
        "power losses in resumes",
        "differential runs",
        "two judges",
        "revisions compared",
    }
    assert "7" in found["two judges"].words


def test_night_plays_all_parts_whose_tests_take_turns_in_commits() -> None:
    whole = [
        check.words
        for check in checks.checks(7, 5.0).values()
        if ("HYPOTHESIS_PROFILE", "nightly") in check.environment
    ]
    parts = {part for words in whole for part in conftest.PARTS if part in words}
    assert {*conftest.TURNS} <= parts
    assert not any("-m" in words[2:] for words in whole)


def test_suite_that_cannot_be_fetched_fails_no_night_and_a_red_one_does(
    work: Work, running: Callable[..., Ran]
) -> None:
    ran = running(lambda words: Done(1 if "kgo" in words else 2, "2 red"))
    work.begin("suites", LONG_S)
    assert checks.play_suites(work, time.monotonic() + LONG_S) == (Outcome.FAILED, "kgo: 2 red")
    assert sorted(work.stage("suites").tried) == bundled()
    assert len(ran) == len(bundled())


def test_each_stage_has_a_share_and_a_function() -> None:
    assert list(nights_command.STAGES) == list(SHARES)
