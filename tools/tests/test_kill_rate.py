"""The measurement of kill rates."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.kill_rate import main, report

ROW = {"mutant": "one", "file": "a.b", "killed": "lost-write", "seconds": 2.0, "called": 3}


def test_the_report_has_the_rate_and_names_what_lived() -> None:
    rows = [ROW, {**ROW, "mutant": "two", "killed": ""}, {**ROW, "mutant": "three", "killed": "", "called": 0}]
    text = report(rows, 60)
    assert "a.b" in text
    assert "1 of 3" in text
    assert "lived: two, three (never called)" in text
    assert "1 of 3 mutants killed within 60 s of processor time each (33 %), half of them within 2 s" in text


@pytest.mark.parametrize("arguments", [[], ["--random", "--corpus", "."], ["--random", "--mutants", "no_such"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    out = tmp_path / "kills.jsonl"
    out.write_text(json.dumps({**ROW, "mutant": "answered_isr_counts_at_once"}) + "\n")
    arguments = ["--random", "--mutants", "answered_isr_counts_at_once", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "1 of 1 mutants killed" in result.output
    assert len(out.read_text().splitlines()) == 1
