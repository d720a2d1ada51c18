"""The fleet command with its Locust processes against the reference broker, all as processes of their own."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from bench.fleet.spec import SpecError, parse_spec

LOAD: dict[str, Any] = {
    "seconds": 2,
    "topics": [{"name": "hot", "partitions": 4}],
    "fetchers": [
        {"name": each, "behaviour": each, "count": 1, "topic": "hot", "partitions": 3}
        for each in ("full", "incremental", "forgetting", "rotating", "resending", "presuming")
    ],
    "producers": [{"count": 2, "topic": "hot", "rate_per_s": 200}],
}
SPEC = {"workers": 1, "load": LOAD}


class PipedRun(subprocess.Popen[str]):
    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    arguments = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    process = PipedRun(
        [sys.executable, "-m", "reference_broker.serve.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    ready = json.loads(process.stdout.readline())
    yield ready["listen"]
    process.terminate()
    process.wait(30)
    process.stdout.close()


def start(
    tmp_path: Path, bootstrap: str, *options: str, load: dict[str, Any] | None = None, **changes: Any
) -> PipedRun:
    spec = tmp_path / "spec.json"
    where = {"bootstrap": [bootstrap], "out_dir": str(tmp_path / "run")}
    spec.write_text(json.dumps({**SPEC, **where, "load": {**LOAD, **(load or {})}, **changes}))
    command = [sys.executable, "-m", "bench.fleet", str(spec), *options]
    return PipedRun(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def table(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "run" / "history").glob(f"{name}*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


@pytest.mark.live
def test_members_of_groups_read_everything_and_commit_it(tmp_path: Path, bootstrap: str) -> None:
    """Old clients and new ones, in both protocols, with and without membership, over two workers."""
    settings = {"commit_interval_ms": 200, "heartbeat_interval_ms": 200}
    groups = [
        {"name": "eager", "count": 2, "topics": ["hot"], "metadata_epoch": False, **settings},
        {"name": "cooperative", "count": 2, "topics": ["hot"], "protocol": "cooperative", **settings},
        {"name": "outside", "count": 2, "topics": ["hot"], "protocol": "assigned", "offsets": "outside", **settings},
    ]
    with start(tmp_path, bootstrap, workers=2, load={"fetchers": [], "groups": groups, "seconds": 8}) as fleet:
        fleet.stdin.close()
        lines = [json.loads(line) for line in fleet.stdout]
        errors = fleet.stderr.read()
    assert fleet.returncode == 0, errors
    assert next(line["members"] for line in lines if line["event"] == "load") == 6
    runs = table(tmp_path, "runs")
    acked: Counter[Any] = Counter()
    for run in runs:
        if run["kind"] == "send" and run["first_offset"] >= 0:
            acked[run["partition"]] += run["count"]
    assert sum(acked.values()) > 300
    groups_of = {each["process"]: each["group"] for each in table(tmp_path, "commits")}
    read: dict[str, Counter[int]] = {name: Counter() for name in ("eager", "cooperative")}
    for run in runs:
        if run["kind"] == "read" and groups_of.get(run["process"]) in read:
            read[groups_of[run["process"]]][run["partition"]] += run["count"]
    assert read == {"eager": acked, "cooperative": acked}
    commits = [each for each in table(tmp_path, "commits") if each["kind"] in ("commit", "stored")]
    ends = {}
    for commit in sorted(commits, key=lambda row: row["at_us"]):
        assert commit["error"] is None
        ends[commit["group"], commit["partition"]] = commit["offset"]
    for group in ("eager", "cooperative", "outside"):
        assert {number: ends[group, number] for number in range(4)} == dict(acked), group


@pytest.mark.live
def test_fleet_leaves_a_history_in_which_every_acknowledged_record_was_read(tmp_path: Path, bootstrap: str) -> None:
    with start(tmp_path, bootstrap, "--hold", load={"seconds": 60}) as fleet:
        events = []
        for line in fleet.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "progress" and events[-1]["acked_records"] > 300:
                break
        fleet.stdin.write('{"cmd": "stop"}\n')
        fleet.stdin.flush()
        for line in fleet.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "load_ended":
                fleet.send_signal(signal.SIGTERM)
        errors = fleet.stderr.read()
    assert fleet.returncode == 0, errors
    assert [event["event"] for event in events if event["event"] != "progress"] == [
        "load",
        "load_ended",
        "final",
        "done",
    ]
    operations = table(tmp_path, "operations")
    sent = [
        operation
        for operation in operations
        if operation["f"] in ("fetch", "produce") and operation["error"] != "not_sent"
    ]
    assert {operation["type"] for operation in sent} == {"ok"}, (
        "on a busy machine slots may be overdue when the load ends"
    )
    assert len({operation["process"] for operation in operations}) == 6 + 2 + 3
    runs = table(tmp_path, "runs")
    acked: Counter[Any] = Counter()
    for run in runs:
        if run["kind"] == "send" and run["first_offset"] >= 0:
            acked[run["writer"]] += run["count"]
    read: Counter[str] = Counter()
    for run in runs:
        if run["process"] == "final-reader":
            assert run["valid"]
            read[run["writer"]] += run["count"]
    assert read == acked
    ends = {(each["topic"], each["partition"]): each["high_watermark"] for each in table(tmp_path, "ends")}
    assert len(ends) == 4 + 6
    reached: dict[tuple[str, str, int], int] = {}
    for each in table(tmp_path, "positions"):
        key = (each["process"], each["topic"], each["partition"])
        reached[key] = max(reached.get(key, 0), each["next_offset"])
    for each in table(tmp_path, "assignments"):
        where = (each["topic"], each["partition"])
        assert reached[(each["process"], *where)] == ends[where]
    assert all(operation["intended_us"] >= 0 for operation in operations)


@pytest.mark.nightly
@pytest.mark.live
def test_spike_adds_and_removes_clients(tmp_path: Path, bootstrap: str) -> None:
    fetchers = [{"behaviour": "incremental", "count": 10, "topic": "hot", "partitions": 3}]
    shape = {"kind": "spike", "base_percent": 20}
    with start(tmp_path, bootstrap, load={"seconds": 10, "fetchers": fetchers}, shape=shape) as fleet:
        output, errors = fleet.communicate(timeout=90)
    assert fleet.returncode == 0, errors
    left = [
        each["readers_left"] + each["writers_left"]
        for each in map(json.loads, output.splitlines())
        if each["event"] == "progress"
    ]
    polls: Counter[str] = Counter()
    for each in table(tmp_path, "operations"):
        if each["f"] == "fetch":
            polls[each["process"]] += 1
    assert len(polls) == 10, "not all fetchers lived in the spike"
    assert min(left) <= 4, "those of the spike never left"
    lasting = [each for each in table(tmp_path, "assignments") if each["until_us"] == 2**63 - 1]
    assert 0 < len({each["process"] for each in lasting}) < 10
    failures = {each["error"] for each in table(tmp_path, "operations") if each["f"] in ("fetch", "produce")}
    assert failures <= {None, "not_sent"}
    assert max(each["wanted_permille"] for each in table(tmp_path, "load")) > 0


@pytest.mark.nightly
@pytest.mark.live
def test_locusts_page_starts_and_stops_the_load_again_and_again(tmp_path: Path, bootstrap: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with start(tmp_path, bootstrap, "--web", str(port), workers=2, load={"seconds": 0}) as fleet:
        opened = json.loads(fleet.stdout.readline())
        assert opened["event"] == "web", fleet.stderr.read()
        with urlopen(opened["url"], timeout=30) as page:
            assert b"Locust" in page.read()
        for _ in range(2):
            wait_until_workers(opened["url"], 2)
            form = urlencode({"user_count": 8, "spawn_rate": 8}).encode()
            with urlopen(f"{opened['url']}/swarm", form, timeout=30) as response:
                assert json.load(response)["success"]
            time.sleep(PAGE_MEMORY_S)
            assert wait_for(lambda: fetches_counted(opened["url"]) > 20), "the page shows no fetches"
            with urlopen(f"{opened['url']}/stop", b"", timeout=30) as response:
                assert json.load(response)["success"]
        fleet.stdin.write('{"cmd": "stop"}\n')
        fleet.stdin.close()
        events = [json.loads(line) for line in fleet.stdout]
        fleet.wait(60)
    assert events[-1]["event"] == "done"
    assert fleet.returncode == 0
    operations = table(tmp_path, "operations")
    assert {operation["process"].split(".")[0] for operation in operations if operation["f"] == "fetch"} == {"1", "2"}
    acked = sum(each["count"] for each in table(tmp_path, "runs") if each["kind"] == "send")
    read = sum(each["count"] for each in table(tmp_path, "runs") if each["process"] == "final-reader")
    assert read == acked > 0


PAGE_MEMORY_S = 2.5
"""Locust's page returns its previous figures for two seconds: those of the last start."""


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.2)
    return False


def statistics(url: str) -> Any:
    with urlopen(f"{url}/stats/requests", timeout=30) as response:
        return json.load(response)


def fetches_counted(url: str) -> int:
    return sum(stat["num_requests"] for stat in statistics(url)["stats"] if stat["name"] == "fetch")


def wait_until_workers(url: str, count: int) -> None:
    ready = ("ready", "stopped")
    assert wait_for(lambda: sum(worker["state"] in ready for worker in statistics(url)["workers"]) >= count)


@pytest.mark.live
def test_broker_that_is_not_there_gives_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with start(tmp_path, address, reach_ms=300) as fleet:
        _, errors = fleet.communicate(timeout=30)
    assert fleet.returncode == 2
    assert errors.splitlines() == [
        f"No broker answers at {address} (refused: [Errno 111] Connection refused): start it, or give another address."
    ]


def changed(table: str, **values: Any) -> dict[str, Any]:
    """The first of these tables of the load, with other values."""
    first, *others = LOAD[table]
    return {"load": {**LOAD, table: [{**first, **values}, *others]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        (changed("fetchers", behaviour="lazy"), "'lazy'; allowed: full"),
        (changed("fetchers", colour=1), "unknown key load.fetchers.0..colour"),
        (changed("producers", record_bytes=9), "no room"),
        (changed("producers", acks=0), "acks 0"),
        (changed("topics", partitions=2), "wants 3 partitions of 'hot', which has 2"),
    ],
)
def test_wrong_spec_is_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("`", ".")):
        parse_spec(json.dumps({**SPEC, "bootstrap": ["127.0.0.1:1"], **changes}).encode())
