"""The progress of a run on a terminal and elsewhere."""

import sys
from dataclasses import replace
from io import StringIO

import pytest

from chaos.live.runner import RunView, seen_by_clients
from crucible_kafka import progress as progress_table

REPORT = {
    "offered_per_s": 1200,
    "completed_per_s": 1190,
    "failed": 3,
    "acked_records": 40_000,
    "read_records": 90_000,
    "worst_produce_p99_us": 4_200,
    "worst_fetch_p99_us": 0,
    "signs of corrupt-value": 0,
    "signs of inconsistent-offsets": 2,
}
LOADED = RunView("load", 12.4, 80.0, REPORT, ("link_cut", "link_cut"), 7, ("leader_killed", 17.6))


def test_report_s_signs_name_guarantees() -> None:
    assert seen_by_clients(REPORT) == ("inconsistent-offsets",)
    assert seen_by_clients({}) == ()


def test_phase_rates_faults_and_violations_are_described_in_words() -> None:
    shown = dict(progress_table.words(LOADED))
    assert shown["phase"] == "load, 12 of 80 s"
    assert shown["offered"] == "1,200 operations/s"
    assert shown["completed"] == "1,190 operations/s, 3 failed so far"
    assert shown["p99, slowest worker"] == "produce 4.2 ms, fetch none"
    assert shown["faults"] == "link_cut under way, 7 hits; next: leader_killed in 18 s"
    assert shown["broken"] == "nothing that clients or nodes have seen"
    assert dict(progress_table.words(replace(LOADED, phase="final read", load_s=81.0)))["phase"] == "final read"
    early = dict(progress_table.words(RunView("nodes start", -1.0, 80.0)))
    assert early["phase"] == "nodes start"
    assert "offered" not in early


def test_without_terminal_lines_are_rare_but_violations_immediate(monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with progress_table.shown_live() as show:
        for second in range(25):
            show(replace(LOADED, load_s=float(second), broken=("duplicate",) if second >= 3 else ()))
        show(replace(LOADED, load_s=81.0))
    lines = said.getvalue().splitlines()
    assert sum("phase: load" in line for line in lines) == 3, "at 0, 10 and 20 s"
    assert [line.strip() for line in lines if "BROKEN" in line] == ["BROKEN, as clients or nodes see it: duplicate"]


def test_on_a_terminal_a_table_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress_table.shown_live() as show:
        show(replace(LOADED, broken=("duplicate",)))
    assert "leader_killed in 18 s" in screen.getvalue()
    assert "duplicate" in screen.getvalue()
