"""Wrong commands, and interruptions: one sentence, an honest exit code, nothing left over."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hypothesis  # noqa: F401  (a broker keeps it out of its process unless it is there, and this one is pytest's)
import psutil
import pytest
from click.testing import CliRunner, Result
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from crucible_kafka import cli, shell_completion, verdicts
from crucible_kafka.commands.scenario_options import find_scenarios, in_revisions
from crucible_kafka.live_plays import live_plays
from reports.decide import decide
from reports.manifest import write_manifest
from reports.s3 import RemoteRun
from reports.tests.test_verdict import MANIFEST, findings
from reports.verdict import Outcome, Verdict
from scenarios.loader import CATALOGUE, FOLDER, load, typed

ROOT = FOLDER.parent
LAUNCHER = ROOT / "crucible_kafka"
PLAIN_LOAD = CATALOGUE / "basics" / "plain-load.toml"
PLAIN = PLAIN_LOAD.read_text()


def typed_in(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def refused(result: Result) -> str:
    """Exit code 2, and one sentence on stderr with nothing of Python in it; gives the sentence."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    *before, sentence = result.stderr.strip().splitlines()
    assert all(line.startswith(("[", "Usage:", "Try ")) or not line for line in before), before
    return sentence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a path to a file, where a command requires a folder."""
    path = tmp_path / "a-file"
    path.write_text("")
    return path


@pytest.mark.parametrize("command", ["run", "sim"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a scenario"),
        (["nonsense"], "no scenario 'nonsense'; give a file, its stem or its number"),
        (["nofile.toml"], "no file 'nofile.toml'; give"),
        (["--all", "1"], "not both"),
        (["1", "--mutant", "no_epoch_comparison", "--with-mutants"], "not both"),
        (["1", "--mutant", "nonsense"], "no mutant 'nonsense'; ./crucible mutants lists all"),
    ],
)
def test_missing_name_is_reported(command: str, words: list[str], sentence: str) -> None:
    assert sentence in refused(typed_in(command, *words))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "1", "--revision", "none"], "'none' is not one of 'final', 'first'"),
        (["sim", "1@second"], "no revision 'second'; there are: final, first, none"),
        (["compare", "nonsense"], "no scenario 'nonsense'"),
        (["compare", "swarm"], "draws its faults from each seed"),
        (["compare"], "Missing argument 'SCENARIO | RUN_DIR...'"),
    ],
)
def test_revision_or_comparison_that_cannot_be_is_refused(words: list[str], sentence: str) -> None:
    assert sentence in refused(typed_in(*words))


def test_each_revision_is_played_unless_one_is_named() -> None:
    (both,) = find_scenarios(["1"], False)
    assert both.revisions == ("final", "first")
    (one,) = find_scenarios(["1@first"], False)
    (final,) = find_scenarios(["1@final"], False)
    for scenario, wanted, names in (
        (both, None, ["01-lost-response", "01-lost-response@first"]),
        (both, "first", ["01-lost-response@first"]),
        (one, None, ["01-lost-response@first"]),
        (one, "final", ["01-lost-response"]),
        (final, None, ["01-lost-response"]),
    ):
        assert [revision.name for revision in in_revisions(scenario, wanted)] == names


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title = ", "not valid TOML"),
        (PLAIN.replace("title =", "titel ="), "unknown key titel, did you mean title; allowed here:"),
        (PLAIN + "\nsurplus = 1\n", "surplus"),
        (PLAIN.replace("seconds = 15", 'seconds = "x"', 1), "load.seconds must be a number"),
    ],
)
def test_wrong_scenario_file_is_refused_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert sentence in refused(typed_in("run", path))
    assert "mine.toml" in refused(typed_in("sim", path))


def test_scenario_file_of_ones_own_is_played_and_named_in_the_repeat_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN.replace("sim_min_acked = 100", "sim_min_acked = 1000000"))
    result = typed_in("sim", path, "--seed", "3")
    assert result.exit_code == 3
    assert typed(load(path)) == str(path)
    assert typed(load(PLAIN_LOAD)) == "plain-load"


def test_folder_that_cannot_be_written_is_refused(file: Path, tmp_path: Path) -> None:
    for out in (file, file / "below", "/proc/no-such-folder"):
        assert "give --out another folder" in refused(typed_in("run", "plain-load", "--out", out))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "x").touch()
    assert "give --out a new one" in refused(typed_in("compare", "plain-load", "--out", tmp_path / "old"))
    assert "give --out a new one" in refused(typed_in("run", "plain-load", "--out", tmp_path / "old"))
    assert "give --data a directory of your own" in refused(typed_in("cluster", "--data", file))
    assert refused(typed_in("sim", "1", "--seed", "1", "--out", file))
    assert "--seed" in refused(typed_in("sim", "1", "--seeds", "3", "--out", tmp_path / "several"))


def test_target_that_is_not_there_or_lacks_something_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.live.external.target.PATIENCE_S", 0.1)
    out = tmp_path / "run"
    for target in ("nonsense", "127.0.0.1:0", "127.0.0.1:99999", ":9092"):
        assert "give HOST:PORT" in refused(typed_in("run", "plain-load", "--target", target, "--out", out))
    words = ("--target", "127.0.0.1:1", "--out", out)
    assert "No broker answers at 127.0.0.1:1" in refused(typed_in("run", "plain-load", *words))
    first = refused(typed_in("run", "1", "--revision", "first", *words))
    assert "lacks what 01-lost-response@first needs: the first revision of fetch sessions" in first
    assert "needs: [state], which is set inside" in refused(typed_in("run", "6", *words))
    assert not out.exists()


def test_target_file_with_unknown_keys_is_rejected(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('title = "Mine"\ncontainer = "x"\naddresses = ["127.0.0.1:1"]\n')
    refusal = refused(typed_in("run", "plain-load", "--target", mine, "--out", tmp_path / "run"))
    assert "mine.toml: unknown key container; allowed here: addresses" in refusal
    assert "between 1 and 9 nodes" in refused(typed_in("run", "plain-load", "--target", "kafka/12"))


def test_missing_java_and_maven_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (["demo"], ["run", "1"], ["compare", "1"], ["test"], ["report", str(tmp_path)], ["index"]):
        assert "Java runtime, 17 or newer" in refused(typed_in(*words))
    assert "needs Java 17" in refused(typed_in("bench", "--peer", "kafka"))
    (tmp_path / "java").symlink_to("/bin/true")
    monkeypatch.setattr("bench.targets.providers.kafka.CACHE", tmp_path / "cache")
    assert "Maven: install it" in refused(typed_in("bench", "--peer", "kafka"))


def test_version_names_the_commit_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = typed_in("--version").output.split()[1]
    for root, path, words in ((ROOT, os.environ["PATH"], 3), (ROOT, str(tmp_path), 2), (tmp_path, "", 2)):
        monkeypatch.setattr(cli, "ROOT", root)
        monkeypatch.setenv("PATH", path)
        result = typed_in("--version")
        assert result.exit_code == 0
        assert len(result.output.split()) == (words if (root / ".git").exists() else 2)
    assert re.fullmatch(r"\d+\.\d+\.\d+", installed)


def test_all_commands_are_found_and_a_wheel_refuses_those_that_need_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    help_lines = typed_in("--help").output.splitlines()
    listed = [line.split()[0] for line in help_lines[help_lines.index("Commands:") + 1 :]]
    assert listed == sorted({*cli.COLLECTED, "broker", "cluster", "serve"})
    for name in listed:
        assert f"  ./crucible {name}" in typed_in(name, "--help").output
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert "Commands of a clone (not installed):" in typed_in("--help").output
    assert "./crucible" not in typed_in("broker", "--help").output
    assert refused(typed_in("demo")).startswith(
        "crucible: demo needs a clone: get Crucible's repository with git clone"
    )
    monkeypatch.undo()
    assert "  ./crucible broker" in typed_in("broker", "--help").output


def test_folder_that_is_no_run_is_no_report(file: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere", file):
        assert "manifest.json" in refused(typed_in("report", folder))


@pytest.mark.live
def test_failed_start_of_broker_has_reason(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refusal_of(*words: str | Path) -> str:
        """A broker writes to the descriptor of stderr itself."""
        result = typed_in("broker", *words)
        assert result.exit_code == 2
        (sentence,) = (result.stderr + capfd.readouterr().err).strip().splitlines()
        return sentence

    monkeypatch.setattr("chaos.live.cluster_command.await_end_signals", lambda _: None)  # It blocks signals for good.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        data = ("--data", tmp_path / "data")
        free = ("--listen", "127.0.0.1:0")
        assert "is in use" in refusal_of("--listen", f"127.0.0.1:{port}", *data)
        assert "is in use" in refusal_of(*free, *data, "--metrics", f"127.0.0.1:{port}")
        assert "is in use" in refused(typed_in("cluster", "--port", str(port), *data))
        assert "give HOST:PORT" in refusal_of(*free, *data, "--advertise", "nonsense")
        assert "give HOST:PORT" in refusal_of("--listen", "nonsense", *data)
        assert "give --data a directory" in refusal_of(*free, "--data", file)
        assert "Unknown broker config" in refusal_of(*free, *data, "--config", "nonsense=1")
        assert "KEY=VALUE" in refused(typed_in("broker", *free, *data, "--config", "nonsense"))
        assert "give --nodes 1" in refused(typed_in("cluster", "--nodes", "3", *data))


def test_error_of_our_own_is_a_crash_and_no_broken_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("scenarios.clauses.all_clauses", broken)
    result = typed_in("clauses")
    assert result.exit_code == 4
    assert result.stderr.strip().endswith("crucible: crashed: ZeroDivisionError: on purpose")


def test_interrupt_inside_dropped_exception_still_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def stopped() -> None:
        one = Dropped()
        del one
        time.sleep(30)

    monkeypatch.setattr("scenarios.clauses.all_clauses", stopped)
    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM]
    before = {each: signal.getsignal(each) for each in handled}
    try:
        result = typed_in("clauses")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert result.exit_code == 128 + signal.SIGTERM
    assert result.stderr.strip().endswith("stopped by SIGTERM")


class OneBucket:
    """S3 as a folder. What is in ``refuses`` may not be written."""

    def __init__(self, folder: Path, refuses: str) -> None:
        self._files = SubTreeFileSystem(str(folder), LocalFileSystem())
        self._refuses = refuses
        self.get_file_info = self._files.get_file_info
        self.open_input_stream = self._files.open_input_stream

    def open_output_stream(self, path: str) -> Any:
        if self._refuses in path:
            raise OSError("When completing the upload: AWS Error ACCESS_DENIED during PutObject operation: no\n\tat x")
        self._files.create_dir(str(Path(path).parent), recursive=True)
        return self._files.open_output_stream(path)


@pytest.mark.parametrize(("outcome", "exit_code"), [(Outcome.PASSED, 0), (Outcome.FAILED, 1)])
def test_report_that_s3_refuses_is_kept_here_and_the_verdict_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Outcome, exit_code: int
) -> None:
    def report_runs(folders: Sequence[Path], **_: object) -> list[Verdict]:
        for folder in folders:
            (folder / "report").mkdir()
            (folder / "report" / "index.html").write_text(f"page of {folder.name}")
        return [replace(decided, outcome=outcome, report=path / "report" / "index.html") for path in folders]

    decided = decide(MANIFEST, findings(), tmp_path)
    for name in ("taken", "refused"):
        write_manifest(tmp_path / "s3" / "nights" / name, MANIFEST)
    (tmp_path / "here" / "runs" / "refused").mkdir(parents=True)
    monkeypatch.setattr("reports.s3._store", lambda: OneBucket(tmp_path / "s3", "refused/report"))
    monkeypatch.setattr("reports.judge.report_runs", report_runs)
    monkeypatch.setattr(verdicts, "ROOT", tmp_path / "here")
    result = typed_in("report", "s3://nights/taken", "s3://nights/refused/")
    assert result.exit_code == exit_code
    verdict, *_ = result.stdout.splitlines()
    assert (result.stdout.count(f"{outcome.name}: "), verdict) == (2, f"{outcome.name}: {decided.summary}")
    assert "report in S3: s3://nights/taken/report/index.html" in result.stdout
    assert "s3://nights/refused/report" not in result.stdout
    assert "report: " not in result.stdout, "it names a folder that is gone"
    kept = tmp_path / "here" / "runs" / "refused-1" / "report"
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("crucible: S3 refuses these credentials: look at AWS_ACCESS_KEY_ID")
    assert sentence.endswith(f"so the report of s3://nights/refused/ is kept in {kept}.")
    assert (kept / "index.html").read_text() == "page of refused"
    assert (tmp_path / "s3" / "nights" / "taken" / "report" / "index.html").read_text() == "page of taken"


@pytest.mark.parametrize("takes", ["temporary", "none"])
def test_unwritable_report_is_reported_and_verdict_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, takes: str
) -> None:
    def report_runs(folders: Sequence[Path], **_: object) -> list[Verdict]:
        (folders[0] / "report").mkdir()
        (folders[0] / "report" / "index.html").write_text("page")
        return [replace(decided, outcome=Outcome.FAILED, report=folders[0] / "report" / "index.html")]

    def move(run: Path, target: Path) -> None:
        if takes == "none" or target.parent.name == "runs":
            target.mkdir()
            (target / "part").touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        run.rename(target)

    decided = decide(MANIFEST, findings(), tmp_path)
    write_manifest(tmp_path / "s3" / "nights" / "refused", MANIFEST)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("reports.s3._store", lambda: OneBucket(tmp_path / "s3", "refused/report"))
    monkeypatch.setattr("reports.s3.shutil.move", move)
    monkeypatch.setattr("reports.judge.report_runs", report_runs)
    monkeypatch.setattr(verdicts, "ROOT", tmp_path / "here")
    result = typed_in("report", "s3://nights/refused")
    assert result.exit_code == 1
    (sentence,) = result.stderr.splitlines()
    assert list((tmp_path / "here" / "runs").iterdir()) == []
    kept = [path.parent for path in tmp_path.glob("tmp/*/refused/report/index.html")]
    assert len(kept) == (takes == "temporary")
    place = f"kept in {kept[0]}" if kept else "lost, because no folder here takes it"
    assert sentence.endswith(f", so the report of s3://nights/refused is {place}.")


def test_report_page_is_uploaded_last(tmp_path: Path) -> None:
    store = OneBucket(tmp_path / "s3", "report/verdict.json")
    run = RemoteRun("nights/half", tmp_path / "half")
    (run.stand_in / "report" / "plots").mkdir(parents=True)
    for name in ("index.html", "plots/index.html", "verdict.json"):
        (run.stand_in / "report" / name).touch()
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        run.take_report(store)
    report = tmp_path / "s3" / "nights" / "half" / "report"
    assert [str(path.relative_to(report)) for path in report.rglob("*.*")] == ["plots/index.html"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_failed_cleanup_after_stop_does_not_crash(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def stopped() -> None:
        try:
            raise cli.Stopped(number)
        finally:
            try:
                (Path("nowhere") / "at-all").rmdir()
            except OSError as failure:
                raise RuntimeError("it could not be removed") from failure

    monkeypatch.setattr("scenarios.clauses.all_clauses", stopped)
    result = typed_in("clauses")
    assert result.exit_code == 128 + number
    assert result.stderr == f"crucible: stopped by {signal.Signals(number).name}\n"


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_that_is_stopped_ends_all_its_processes_and_leaves_no_folder(number: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, str(LAUNCHER), "run", "plain-load", "--out", str(out)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if re.search("serves at", line):
                break
        deadline = time.monotonic() + 30
        while len(children := psutil.Process(process.pid).children(recursive=True)) < 3:
            assert time.monotonic() < deadline, f"only {children} were started"
            time.sleep(0.01)
        process.send_signal(number)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)  # Impatience changes nothing.
        errors = process.stderr.read()
    assert process.returncode == 128 + number
    assert errors.strip().endswith(f"stopped by {signal.Signals(number).name}")
    assert psutil.wait_procs(children, timeout=3)[1] == []
    assert not out.exists()


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.parametrize("command", ["broker", "cluster"])
def test_under_nohup_a_hang_up_ends_nothing(tmp_path: Path, command: str) -> None:
    listen = ["--listen", "127.0.0.1:0"] if command == "broker" else []
    words = ["nohup", sys.executable, str(LAUNCHER), command, *listen, "--data", str(tmp_path / "data")]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=quiet, stdin=quiet) as process:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_live_selection_omits_simulated_only_and_other_revision() -> None:
    everything = [scenario for scenario in find_scenarios([], True) if not scenario.swarm]
    plays = {(each.name, mutant) for each, mutant in live_plays(everything, None, None, "reference", True)}
    assert {("01-lost-response@first", ""), ("04-forget-cut@first", "replaced_partitions_kept")} <= plays
    assert ("04-forget-cut", "replaced_partitions_kept") not in plays
    assert not {name for name, _ in plays} & {"voter-loses-power", "failed-sync"}


def test_named_unplayable_scenario_is_rejected() -> None:
    assert "exists only in the simulator" in refused(typed_in("run", "voter-loses-power", "--with-mutants"))
    assert "exists only in the simulator" in refused(typed_in("run", "voter-loses-power"))
    assert "lacks a mechanism" in refused(typed_in("run", "4@first", "--mutant", "only_records_count_as_changes"))


def test_incomparable_runs_are_distinguished_from_scenarios(tmp_path: Path) -> None:
    assert "--with RUN_DIR..." in refused(typed_in("compare", tmp_path, tmp_path))
    assert f"{tmp_path} is neither a run nor a folder of runs" in refused(
        typed_in("compare", tmp_path, "--with", tmp_path)
    )


def test_all_arguments_after_with_are_second_set(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    monkeypatch.setattr("crucible_kafka.commands.compare._compare_runs", lambda *sides: compared.extend(sides))
    typed_in("compare", "a", "b", "--with", "c", "d", "--out", "e")
    assert compared == [[Path("a"), Path("b")], (Path("c"), Path("d")), Path("e")]


def test_folder_without_nights_has_no_index(tmp_path: Path) -> None:
    assert f"{tmp_path} has no nights: ./crucible nightly writes one" in refused(
        typed_in("index", "--nights", tmp_path)
    )


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("comp", {"compare", "completion"}),
        ("run 27", {"27-killed-at-epoch"}),
        ("sim 1 --mutant no_epoch_comp", {"no_epoch_comparison"}),
        ("run 1 --target kaf", {"kafka"}),
    ],
)
def test_shell_is_offered_commands_scenarios_mutants_and_targets(typed: str, offered: set[str]) -> None:
    words = ["crucible", *typed.split()]
    environment = {
        "_CRUCIBLE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    with CliRunner(env=environment).isolation() as (out, *_), pytest.raises(SystemExit):
        cli.main([], prog_name="./crucible", complete_var="_CRUCIBLE_COMPLETE")
    assert offered <= {line.split(",")[1] for line in out.getvalue().decode().splitlines()}


@pytest.mark.parametrize("shell", shell_completion.SHELLS)
def test_each_shell_has_a_script_that_names_the_command(shell: str) -> None:
    result = typed_in("completion", shell)
    assert result.exit_code == 0
    assert f"_CRUCIBLE_COMPLETE={shell}_complete" in result.output


def test_page_of_the_worst_run_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    browser = Mock(return_value=0)
    monkeypatch.setattr("click.launch", browser)
    good, bad = (Mock(exit_code=code, report=tmp_path / f"{code}.html") for code in (0, 1))
    verdicts.open_worst([good, bad, good])
    browser.assert_called_once_with(str(tmp_path / "1.html"))
