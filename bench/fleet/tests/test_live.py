"""The fleet command with its Locust processes against the reference broker, all as processes of their own."""

import json
import signal
import socket
import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest

from bench.fleet.spec import SpecError, parse_spec

SPEC = {
    "seconds": 2,
    "partitions": 4,
    "workers": 1,
    "fetchers": [
        {"behaviour": each, "count": 1, "partitions": 3}
        for each in ("full", "incremental", "forgetting", "rotating", "resending", "presuming")
    ],
    "producers": [{"count": 2, "rate_per_s": 400}],
}


@pytest.fixture
def bootstrap(tmp_path):
    arguments = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        [sys.executable, "-m", "reference_broker.serve.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    ready = json.loads(process.stdout.readline())
    yield ready["listen"]
    process.terminate()
    process.wait(10)
    process.stdout.close()


def start(tmp_path, bootstrap, *options, **changes):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**SPEC, "bootstrap": [bootstrap], "out_dir": str(tmp_path / "run"), **changes}))
    command = [sys.executable, "-m", "bench.fleet", str(spec), *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def table(tmp_path, name):
    files = sorted((tmp_path / "run" / "history").glob(f"{name}*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


@pytest.mark.live
def test_a_fleet_leaves_a_history_in_which_every_acknowledged_record_was_read(tmp_path, bootstrap):
    with start(tmp_path, bootstrap, "--hold", seconds=60) as fleet:
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
    assert [each["event"] for each in events if each["event"] != "progress"] == ["load", "load_ended", "final", "done"]
    operations = table(tmp_path, "operations")
    assert {each["type"] for each in operations if each["f"] in ("fetch", "produce")} == {"ok"}
    assert len({each["process"] for each in operations}) == 6 + 2 + 3
    runs = table(tmp_path, "runs")
    acked = Counter()
    for each in runs:
        if each["kind"] == "send" and each["first_offset"] >= 0:
            acked[each["writer"]] += each["count"]
    read = Counter()
    for each in runs:
        if each["process"] == "final-reader":
            assert each["valid"]
            read[each["writer"]] += each["count"]
    assert read == acked
    ends = {(each["topic"], each["partition"]): each["high_watermark"] for each in table(tmp_path, "ends")}
    assert len(ends) == 4 + 6
    reached = {}
    for each in table(tmp_path, "positions"):
        key = (each["process"], each["topic"], each["partition"])
        reached[key] = max(reached.get(key, 0), each["next_offset"])
    for each in table(tmp_path, "assignments"):
        where = (each["topic"], each["partition"])
        assert reached[(each["process"], *where)] == ends[where]
    assert all(each["intended_us"] >= 0 for each in operations)


@pytest.mark.live
def test_a_broker_that_is_not_there_gives_one_sentence_and_exit_code_2(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with start(tmp_path, address, reach_ms=300) as fleet:
        _, errors = fleet.communicate(timeout=30)
    assert fleet.returncode == 2
    assert errors.splitlines() == [
        f"No broker answers at {address} (refused: [Errno 111] Connection refused): start it, or give another address."
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        ({"fetchers": [{"behaviour": "lazy", "count": 1, "partitions": 1}]}, "behaviour 'lazy' is unknown"),
        ({"producers": [{"count": 1, "rate_per_s": 5, "record_bytes": 9}]}, "no room"),
        ({"producers": [{"count": 1, "rate_per_s": 5, "acks": 0}]}, "acks must be 1 or -1"),
        ({"partitions": 2}, "wants 3 of 2 partitions"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_sentence(changes, told):
    with pytest.raises(SpecError, match=told.replace("`", ".")):
        parse_spec(json.dumps({**SPEC, "bootstrap": ["127.0.0.1:1"], **changes}).encode())
