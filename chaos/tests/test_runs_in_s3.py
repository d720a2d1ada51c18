"""A run whose history is in S3 is judged as a local one, copied or read in place. Its report goes there."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chaos.live.s3_server import BUCKET, CREDENTIALS, S3Server
from crucible_kafka import cli
from reports import s3
from reports.errors import SetupError
from reports.judge import report_runs
from reports.scale.violations import Place, Planted
from reports.scale.writing import write_history
from reports.verdict import Outcome

pytestmark = [pytest.mark.live, pytest.mark.nightly, pytest.mark.timeout(900)]

OPERATIONS = 3_000
ERROR_LIMIT_S = 30
SPARK_ERROR_LIMIT_S = 120
"""Spark starts first, which takes long on a busy machine."""
JUDGE_IN_PLACE = """
import os, sys
from reports import s3
from reports.errors import SetupError
from reports.judge import report_runs
from crucible_kafka.terminal import one_sentence

with one_sentence(SetupError), s3.local_folders(sys.argv[2:], most_copied_bytes=0) as folders:
    os.environ[s3.ENDPOINT] = sys.argv[1]
    stand_ins = [folder for place, folder in zip(sys.argv[2:], folders) if s3.is_remote(place)]
    assert not any((each / "history").exists() for each in stand_ins)
    report_runs(folders)
"""
"""Spark reads from the endpoint that is named first. It is a process of its own, because the Java of this one may have
started without the S3 jars."""


@pytest.fixture
def endpoint(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The server's address. The environment names it, with credentials that the server takes."""
    nowhere = str(tmp_path / "nowhere")
    alone = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": nowhere, "AWS_SHARED_CREDENTIALS_FILE": nowhere}
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**CREDENTIALS, **alone, s3.ENDPOINT: s3_server.endpoint, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return s3_server.endpoint


@pytest.fixture
def store(endpoint: str) -> Any:
    """Arrow's view of that server."""
    assert os.environ[s3.ENDPOINT] == endpoint
    return s3._store()


@pytest.fixture
def in_place(endpoint: str) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Judge runs by a Spark that reads them where they lie. Fetches its jars first, if they are missing."""
    if not any(s3._jar_folder().glob("*.jar")):
        s3.fetch_jars()

    def judge(*places: str, reached_at: str = endpoint) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", JUDGE_IN_PLACE, reached_at, *places]
        root = Path(cli.__file__).parent
        return subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=600, check=False)

    return judge


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and sends no response."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def refusing_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def put(run: Path, store: Any, name: str) -> str:
    for each in (file for file in run.rglob("*") if file.is_file()):
        with store.open_output_stream(f"{BUCKET}/{name}/{each.relative_to(run)}") as target:
            target.write(each.read_bytes())
    return f"s3://{BUCKET}/{name}"


def report_in_s3(store: Any, name: str) -> Any:
    """The verdict of a run, which is beside its page."""
    keys = s3._files_below(store, f"{BUCKET}/{name}")
    assert {"report/index.html", "report/junit.xml", "report/verdict.json"} <= set(keys)
    with store.open_input_stream(f"{BUCKET}/{name}/report/verdict.json") as file:
        return json.loads(file.read())


def broken_in(verdict: Any) -> set[str]:
    return {each["name"] for each in verdict["guarantees"] if each["status"] == "broken"}


def refusal(place: str) -> str:
    """Return the error of the command for a run that it cannot judge: one line, soon, and without a traceback."""
    began = time.monotonic()
    done = CliRunner().invoke(cli.main, ["report", place])
    assert time.monotonic() - began < ERROR_LIMIT_S
    assert done.exit_code == 2
    assert done.output[:10] == "crucible: "
    assert done.output[-2:] == ".\n"
    assert done.output.count("\n") == 1
    return done.output


def test_run_in_s3_is_copied_and_judged_and_its_report_is_put_beside_it(store: Any, tmp_path: Path) -> None:
    write_history(tmp_path / "run", OPERATIONS)
    place = put(tmp_path / "run", store, "copied")
    with s3.local_folders([place]) as folders:
        assert (folders[0] / "history").exists()
        (verdict,) = report_runs(folders)
    assert verdict.outcome is Outcome.PASSED
    (lost,) = [guarantee for guarantee in verdict.guarantees if guarantee.name == "lost-write"]
    assert lost.status == "holds"
    assert lost.evidence > 1_000
    assert report_in_s3(store, "copied")["outcome"] == "PASSED"


def test_spark_reads_runs_in_place_and_distinguishes_them(
    store: Any, in_place: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    violation = Planted({"lost-write": Place(piece=0, append=100, fetcher=0)})
    write_history(tmp_path / "clean", OPERATIONS, 1)
    write_history(tmp_path / "broken", OPERATIONS, 2, violation)
    write_history(tmp_path / "here", OPERATIONS, 3)
    places = [put(tmp_path / each, store, f"in place/{each}") for each in ("clean", "broken")]
    done = in_place(*places, str(tmp_path / "here"))
    assert (done.returncode, done.stderr) == (0, "")
    here = json.loads((tmp_path / "here" / "report" / "verdict.json").read_text(encoding="utf-8"))
    clean, broken = (report_in_s3(store, f"in place/{each}") for each in ("clean", "broken"))
    assert [broken_in(each) for each in (clean, broken, here)] == [set(), {"lost-write", "unseen"}, set()]
    for each in (clean, broken, here):
        (lost,) = [one for one in each["guarantees"] if one["name"] == "lost-write"]
        assert lost["evidence"] > 1_000


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        (f"s3://{BUCKET}/nothing", f"s3://{BUCKET}/nothing has no manifest.json, so it is not a run"),
        (f"s3://{BUCKET}", "has no manifest.json"),
        ("s3://no-such-bucket/run", "has no bucket 'no-such-bucket': name the run as s3://BUCKET/RUN"),
        ("s3://", "has no bucket ''"),
    ],
)
def test_place_without_a_run_is_reported(place: str, message: str) -> None:
    assert message in refusal(place)


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "refuses these credentials: look at AWS_ACCESS_KEY_ID"),
        ("AWS_ACCESS_KEY_ID", "nobody", "refuses these credentials: look at AWS_ACCESS_KEY_ID"),
        ("AWS_ACCESS_KEY_ID", None, "refuses these credentials: look at AWS_ACCESS_KEY_ID"),
        ("AWS_REGION", "mars", "does not serve this region: look at AWS_REGION"),
        (s3.ENDPOINT, "127.0.0.1:9000", "which is no address: write it as http://HOST:PORT"),
    ],
)
def test_setting_that_the_server_refuses_is_reported(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, message: str
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert message in refusal(f"s3://{BUCKET}/run")


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize("port", ["silent_port", "refusing_port"])
def test_server_that_is_away_is_reported(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    away = f"http://127.0.0.1:{request.getfixturevalue(port)}"
    monkeypatch.setenv(s3.ENDPOINT, away)
    assert f"{away} does not respond: look at AWS_ENDPOINT_URL" in refusal(f"s3://{BUCKET}/run")


def test_server_that_goes_away_before_spark_reads_is_reported(
    store: Any, in_place: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, refusing_port: int
) -> None:
    write_history(tmp_path / "run", OPERATIONS)
    place = put(tmp_path / "run", store, "left")
    away = f"http://127.0.0.1:{refusing_port}"
    began = time.monotonic()
    done = in_place(place, reached_at=away)
    assert time.monotonic() - began < SPARK_ERROR_LIMIT_S
    assert done.returncode == 2
    assert done.stderr.startswith(f"crucible: {away} does not respond: look at AWS_ENDPOINT_URL")
    assert (done.stderr[-2:], done.stderr.count("\n")) == (".\n", 1)


def test_large_history_wants_the_jars(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_jar_folder", lambda: tmp_path / "none")
    monkeypatch.setattr("reports.s3.shutil.which", lambda _: None)
    write_history(tmp_path / "run", 2_000)
    place = put(tmp_path / "run", store, "large")
    with pytest.raises(SetupError, match=r"S3 jars come from Maven, and there is no mvn"), s3.local_folders([place], 0):
        pass


@pytest.mark.parametrize(
    ("maven", "message"),
    [
        (
            "echo no such plugin; exit 1",
            r"^Maven did not bring .*: look at its settings and the network \(no such plugin\)",
        ),
        ("exec sleep 60", "^Maven did not bring .* within 1 s: try again later"),
    ],
)
def test_maven_that_brings_no_jars_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maven: str, message: str
) -> None:
    (tmp_path / "mvn").write_text(f"#!/bin/sh\n{maven}\n", encoding="utf-8")
    (tmp_path / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(s3, "_jar_folder", lambda: tmp_path / "jars" / "1")
    monkeypatch.setattr(s3, "FETCH_LIMIT_S", 1)
    with pytest.raises(SetupError, match=message):
        s3.fetch_jars()
    assert list((tmp_path / "jars").iterdir()) == []
