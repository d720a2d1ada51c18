"""``--junit`` and ``--github`` of commands that play something."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from crucible_kafka import cli
from reports.collect import Violations
from reports.tests.test_verdict import MANIFEST, VIOLATION, findings, verdict_of
from reports.verdict import Verdict, write_junit

RED_SEED = ("sim", "1@final", "--seed", "1", "--mutant", "change_mark_cleared_when_sent")


def typed_in(*words: str | Path, github: str | None = None) -> Result:
    return CliRunner(env={"GITHUB_ACTIONS": github}).invoke(cli.main, [str(word) for word in words])


def annotations_of(result: Result) -> list[str]:
    return [line for line in result.stdout.splitlines() if line.startswith("::error ")]


@pytest.mark.parametrize("command", ["run", "sim"])
def test_junit_file_that_cannot_be_written_is_refused_before_anything_is_played(command: str, tmp_path: Path) -> None:
    result = typed_in(command, "1", "--junit", tmp_path / "missing" / "x.xml")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("x.xml: No such file or directory")


def test_refused_command_leaves_no_junit_file(tmp_path: Path) -> None:
    assert typed_in("sim", "nonsense", "--junit", tmp_path / "x.xml").exit_code == 2
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "kept.xml"
    kept.write_text("of an earlier call")
    assert typed_in("sim", "nonsense", "--junit", kept).exit_code == 2
    assert kept.read_text() == "of an earlier call"


def test_shown_node_has_no_results(tmp_path: Path) -> None:
    words = ("sim", "1@final", "--seed", "1", "--at", "5", "--show", "0", "--junit", tmp_path / "x.xml")
    assert "leave --junit out" in typed_in(*words).stderr


@pytest.mark.thorough
def test_red_seed_is_a_failure_with_its_command(tmp_path: Path) -> None:
    result = typed_in(*RED_SEED, "--junit", tmp_path / "sim.xml", "--github")
    assert result.exit_code == 1
    repeat = "repeat with: ./crucible sim 01-lost-response --seed 1 --mutant change_mark_cleared_when_sent"
    (failure,) = ElementTree.parse(tmp_path / "sim.xml").getroot().iterfind("testsuite/testcase/failure")
    assert (failure.get("message") or "").startswith("FAILED with seed 1: ")
    assert repeat in (failure.text or "")
    (line,) = annotations_of(result)
    assert line.startswith("::error title=01-lost-response with change_mark_cleared_when_sent::FAILED with seed 1: ")
    assert repeat in line


@pytest.mark.parametrize(
    ("github", "words", "count"),
    [("true", (), 1), (None, (), 0), ("false", (), 0), ("true", ("--no-github",), 0), (None, ("--github",), 1)],
)
def test_annotations_are_printed_in_github_actions_or_by_request(
    github: str | None, words: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verdict_of(MANIFEST, findings({"poll-skip": Violations(4, (VIOLATION,))}))
    play(monkeypatch, [verdict])
    result = typed_in("run", "1", *words, github=github)
    assert result.exit_code == 1
    assert len(annotations_of(result)) == count


def play(monkeypatch: pytest.MonkeyPatch, verdicts: list[Verdict]) -> None:
    """Let ``crucible run`` find these verdicts, and play nothing."""
    monkeypatch.setattr("crucible_kafka.live_run.play_scenarios", lambda *_: verdicts)
    monkeypatch.setattr("crucible_kafka.live_plays.live_plays", lambda *_: [])
    monkeypatch.setattr("crucible_kafka.live_plays.exit_code_with_mutants", lambda *_: 0)


def test_runs_have_a_suite_each_and_a_killed_mutant_has_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = verdict_of(MANIFEST, findings())
    failed = verdict_of(MANIFEST, findings({"poll-skip": Violations(4, (VIOLATION,))}))
    write_junit(tmp_path / "junit.xml", passed)
    killed = replace(failed, mutant="no_epoch_comparison")
    play(monkeypatch, [replace(passed, report=tmp_path / "index.html"), killed])
    result = typed_in("run", "1", "--with-mutants", "--junit", tmp_path / "all.xml", "--github")
    assert (result.exit_code, annotations_of(result)) == (0, [])
    first, second = ElementTree.parse(tmp_path / "all.xml").getroot()
    assert len(first) == len(passed.guarantees) + 1
    assert (second.get("tests"), second.get("failures")) == ("1", "0")
    assert [each.get("name") for each in second] == [f"{passed.scenario} with no_epoch_comparison"]
