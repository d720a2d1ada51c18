"""Lists of runs, and the runs that are deleted: only old ones that ended as they must."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from chaos.live.kept_runs import KEEP, listed, surplus
from crucible_kafka import cli, run_folder, terminal, verdicts
from crucible_kafka.commands import chaos as commands

DAY = "20260101"


def run_of(runs: Path, name: str, outcome: str = "PASSED", mutant: str = "", inside: str = "") -> Path:
    """Make the folder of a run with 1,000 bytes of history. Without an outcome it has no verdict."""
    folder = runs / name / inside
    (folder / "report").mkdir(parents=True)
    (folder / "history.parquet").write_bytes(bytes(1000))
    if outcome:
        (folder / "report" / "verdict.json").write_text(json.dumps({"outcome": outcome, "mutant": mutant}))
    return runs / name


def names(runs: Path, keep: int, red: bool = False) -> list[str]:
    return [each.path.name for each in surplus(runs, keep, red)]


def test_oldest_go_first_whatever_their_scenario(tmp_path: Path) -> None:
    for name in ("demo", "01-lost-response", "compare-mirror"):
        for second in (1, 2):
            run_of(tmp_path, f"{name}-{DAY}-00000{second}")
    assert names(tmp_path, 4) == [f"01-lost-response-{DAY}-000001", f"compare-mirror-{DAY}-000001"]
    assert len(names(tmp_path, 0)) == 6
    assert names(tmp_path, 6) == names(tmp_path / "nothing", 0) == []


@pytest.mark.parametrize("outcome", ["FAILED", "INVALID", "CRASHED"])
def test_runs_with_unexpected_outcome_are_kept_without_red_option(tmp_path: Path, outcome: str) -> None:
    run_of(tmp_path, f"red-{DAY}-000001", outcome)
    run_of(tmp_path, f"green-{DAY}-000002")
    assert names(tmp_path, 1) == []
    assert names(tmp_path, 0) == [f"green-{DAY}-000002"]
    assert names(tmp_path, 1, red=True) == [f"red-{DAY}-000001"]


def test_mutant_must_be_red(tmp_path: Path) -> None:
    run_of(tmp_path, f"killed-{DAY}-000001", "FAILED", mutant="no_abort")
    run_of(tmp_path, f"escaped-{DAY}-000002", "PASSED", mutant="no_abort")
    assert names(tmp_path, 0) == [f"killed-{DAY}-000001"]


def test_comparison_goes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    for revision, outcome in (("final", "PASSED"), ("first", "PASSED")):
        run_of(tmp_path, f"compare-a-{DAY}-000001", outcome, inside=revision)
    for revision, outcome in (("final", "PASSED"), ("first", "FAILED")):
        run_of(tmp_path, f"compare-b-{DAY}-000002", outcome, inside=revision)
    assert names(tmp_path, 0) == [f"compare-a-{DAY}-000001"]


def test_comparison_of_which_a_run_has_no_verdict_is_not_as_it_must(tmp_path: Path) -> None:
    for name, left in (("a", "manifest.json"), ("b", "trace")):
        compared = run_of(tmp_path, f"compare-{name}-{DAY}-000001", inside="final")
        (compared / "first" / left).mkdir(parents=True)
    assert names(tmp_path, 0) == []
    assert names(tmp_path, 0, red=True) == [f"compare-a-{DAY}-000001", f"compare-b-{DAY}-000001"]


def test_folders_that_have_no_verdict_or_another_name_are_left_alone(tmp_path: Path) -> None:
    run_of(tmp_path, f"in-play-{DAY}-000001", "")
    run_of(tmp_path, "mine")
    broken = run_of(tmp_path, f"torn-{DAY}-000002")
    (broken / "report" / "verdict.json").write_text("{")
    assert names(tmp_path, 0) == []
    assert names(tmp_path, 0, red=True) == [f"torn-{DAY}-000002"]


def test_command_deletes_runs_and_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    folders = [run_of(tmp_path / "runs", f"demo-{DAY}-{second:06}") for second in range(KEEP + 2)]
    pruned = CliRunner().invoke(cli.main, ["runs", "--prune"])
    assert pruned.exit_code == 0
    assert pruned.output.splitlines()[0] == f"deleted runs/{folders[0].name}"
    assert pruned.output.splitlines()[-1].startswith("2 runs deleted, 0.0 MB;")
    assert [folder.exists() for folder in folders] == [False] * 2 + [True] * KEEP
    assert "0 runs deleted" in CliRunner().invoke(cli.main, ["runs", "--prune"]).output


def test_hint_names_the_command_once_there_is_something_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verdicts, "ROOT", tmp_path)
    for second in range(KEEP):
        run_of(tmp_path / "runs", f"demo-{DAY}-{second:06}")
    verdicts.hint_at_old_runs()
    assert capsys.readouterr().err == ""
    run_of(tmp_path / "runs", f"demo-{DAY}-{KEEP:06}")
    verdicts.hint_at_old_runs()
    assert "./crucible runs --prune" in capsys.readouterr().err


def test_all_runs_are_listed_with_verdict_size_age_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "there are no runs yet" in CliRunner().invoke(cli.main, ["runs"]).output
    run_of(tmp_path / "runs", f"demo-{DAY}-000002")
    run_of(tmp_path / "runs", f"in-play-{DAY}-000003", "")
    red = run_of(tmp_path / "runs", f"red-{DAY}-000001", "FAILED")
    (red / "report" / "index.html").write_text("")
    lines = CliRunner().invoke(cli.main, ["runs"]).output.splitlines()
    shown = [line for line in lines if DAY in line]
    assert ["red-" in shown[0], "demo-" in shown[1], "in-play-" in shown[2]] == [True] * 3
    assert "FAILED" in shown[0]
    assert f"runs/red-{DAY}-000001/report/index.html" in shown[0]
    assert "PASSED" in shown[1]
    assert "not judged" in shown[2]
    assert lines[-1].startswith("3 runs, 0.0 MB;")


def test_disk_that_is_nearly_full_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.need_disk(tmp_path / "not" / "yet")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=9, free=5))
    with pytest.raises(SystemExit, match="2"):
        terminal.need_disk(tmp_path / "not" / "yet")
    assert f"0.0 GB are free below {tmp_path}" in capsys.readouterr().err


def test_run_with_a_damaged_manifest_is_listed_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    folder = run_of(tmp_path / "runs", f"demo-{DAY}-000001", outcome="")
    (folder / "manifest.json").write_text('{"scenario": "de')
    output = CliRunner().invoke(cli.main, ["runs"]).output
    assert f"demo-{DAY}-000001" in output
    assert "unreadable" in output


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "ROOT", tmp_path)
    made = {run_folder.run_folder(None, "demo", False) for _ in range(3)}
    assert len(made) == 3
    assert {each.path for each in listed(tmp_path / "runs")} == made
