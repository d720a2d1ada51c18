"""``crucible serve`` as a process: its ready line, and that nothing is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30
COMMAND = [sys.executable, "-m", "crucible_kafka", "serve"]
PARENT = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL); time.sleep(100)"

pytestmark = pytest.mark.live


@contextmanager
def started(*words: str, stdin: int | None = subprocess.DEVNULL) -> Iterator[tuple["subprocess.Popen[str]", Any]]:
    """A process with its ready line."""
    with subprocess.Popen(
        words, cwd=ROOT, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate(timeout=LIMIT_S)[1]
            yield process, json.loads(line)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)


def call(ready: Any, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ready["control"] + path, data, {"Authorization": f"Bearer {ready['token']}"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        return json.loads(response.read())


def await_end(pids: list[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.02)


def is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_ready_and_ends_at_a_signal(number: signal.Signals) -> None:
    with started(*COMMAND, "--config", "num.partitions=5") as (process, ready):
        assert set(ready) == {"ready", "bootstrap_servers", "control", "token"}
        assert call(ready, "/v1/cluster")["bootstrap_servers"] == ready["bootstrap_servers"]
        call(ready, "/v1/rules", {"api": "Produce", "act": "hang"})
        process.send_signal(number)
        assert process.communicate(timeout=LIMIT_S) == ("", "")
        assert process.returncode == 0


def test_killed_leader_of_three_nodes_is_replaced() -> None:
    with started(*COMMAND, "--nodes", "3") as (process, ready):
        call(ready, "/v1/topics", {"name": "orders"})
        path = "/v1/topics/orders/partitions/0/leader"
        before = call(ready, path)["node"]
        pids = [each["pid"] for each in call(ready, "/v1/nodes")]
        assert call(ready, f"/v1/nodes/{before}/kill", {})["running"] is False
        assert call(ready, path)["node"] not in (before, -1)
        assert call(ready, f"/v1/nodes/{before}/restart", {})["serving"] is True
        assert call(ready, path, {"to": before}) == {"node": before}
        pids += [each["pid"] for each in call(ready, "/v1/nodes")]
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    await_end(pids)


def test_rules_that_are_added_while_a_node_restarts_hold_for_it() -> None:
    with started(*COMMAND, "--nodes", "3") as (_, ready), ThreadPoolExecutor() as several:
        restarted = several.submit(call, ready, "/v1/nodes/0/restart", {})
        while not restarted.done():
            added = call(ready, "/v1/rules", {"api": "Produce", "act": "hang", "optional": True})
            assert added["fired"] == 0
        assert restarted.result()["serving"] is True


def test_it_ends_with_its_standard_input() -> None:
    with started(*COMMAND, stdin=subprocess.PIPE) as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("stays", [False, True])
def test_it_ends_with_its_parent_unless_it_is_to_stay(stays: bool) -> None:
    with started(sys.executable, "-c", PARENT, *COMMAND, *(["--stay"] if stays else [])) as (parent, ready):
        pid = call(ready, "/v1/nodes/0")["pid"]
        parent.kill()
        parent.wait(LIMIT_S)
        if stays:
            time.sleep(0.6)
            assert call(ready, "/v1/nodes/0")["pid"] == pid
            os.kill(pid, signal.SIGTERM)
        await_end([pid])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--control", "0.0.0.0:0"], "is not the loopback interface"),
        (["--control", "nowhere"], "--control"),
        (["--nodes", "2"], "give 1, 3 or 5"),
        (["--config", "num.partition=1"], "num.partition"),
        (["--config", "listeners=PLAINTEXT://:1"], "leave it out"),
    ],
)
def test_wrong_option_is_refused_in_one_sentence(words: list[str], sentence: str) -> None:
    done = subprocess.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout, sentence in line) == (2, "", True), line
