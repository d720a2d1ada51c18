"""Starting, rejected starts, stopping, and their cost."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reference_broker.serve.metrics_endpoint import MAX_CONNECTIONS

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

pytestmark = pytest.mark.live


def refused(*words: str) -> str:
    """Return the message of a broker that must not start. Assert one sentence and exit code 2."""
    ended = subprocess.run(
        [sys.executable, "-m", "reference_broker.serve.main", *words], capture_output=True, text=True, timeout=20
    )
    assert ended.returncode == 2, ended.stderr
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("crucible broker: ")
    return lines[0]


def test_ready_line_has_listen_address(broker: "Broker") -> None:
    assert broker.ready == {"ready": True, "listen": broker.listen, "node_id": 0}
    assert broker.listen.startswith("127.0.0.1:")
    assert not broker.listen.endswith(":0")


def test_sigterm_is_clean_shutdown(start_broker: "Callable[..., Broker]", tmp_path: Path) -> None:
    broker = start_broker()
    assert broker.stop() == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert len(broker.log_events("stopped")) == 1
    again = start_broker()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert again.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_during_shutdown_are_ignored(start_broker: "Callable[..., Broker]", number: signal.Signals) -> None:
    """An impatient operator, or a supervisor that signals the process and then its whole group."""
    before = signal.signal(number, signal.SIG_DFL)  # The broker inherits the disposition that nohup set for SIGHUP.
    broker = start_broker()
    signal.signal(number, before)
    while broker.process.poll() is None:
        broker.process.send_signal(number)
        time.sleep(0.0002)
    assert broker.process.returncode == 0
    assert len(broker.log_events("stopped")) == 1
    assert "Traceback" not in broker.log.read_text()


def test_voter_without_majority_logs_wait_and_ends_on_sigterm(tmp_path: Path) -> None:
    voters = "controller.quorum.voters=0@127.0.0.1:1,1@127.0.0.1:1,2@127.0.0.1:1"
    words = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--config", voters]
    words += ["--config", "crucible.cluster.id=c"]
    command = [sys.executable, "-m", "reference_broker.serve.main", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = (json.loads(line) for line in process.stderr)
        not_ready = next(line for line in lines if line["event"] == "not_ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not_ready["reason"].startswith("no leader is known: a majority of the voters 0, 1, 2 must run")


def test_killed_broker_restarts_on_same_port(start_broker: "Callable[..., Broker]") -> None:
    first = start_broker()
    socket.create_connection(first.address).close()
    first.kill()
    assert start_broker(listen=first.listen).listen == first.listen


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusal = refused("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--data", str(tmp_path / "d"))
    assert "is in use" in refusal


def test_unwritable_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Cannot write to the data directory" in refused(
        "--listen", "127.0.0.1:0", "--data", str(tmp_path / "file" / "below")
    )


def test_data_directory_in_use(broker: "Broker", tmp_path: Path) -> None:
    assert broker.process.poll() is None
    assert "in use by another process" in refused("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))


def test_data_directory_of_another_node(start_broker: "Callable[..., Broker]", tmp_path: Path) -> None:
    start_broker().stop()
    refusal = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--node-id", "5")
    assert "5" in refusal


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--config", "num.partitons=3"], "num.partitons"),
        (["--config", "num.partitions=many"], "num.partitions"),
        (["--config", "num.partitions"], "KEY=VALUE"),
        (["--metrics", "x"], "--metrics"),
    ],
)
def test_invalid_command_line_arguments(tmp_path: Path, words: list[str], expected: str) -> None:
    assert expected in refused("--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), *words)


def test_metrics_are_served_for_prometheus(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker("--metrics", "127.0.0.1:0")
    with urllib.request.urlopen(f"http://{broker.ready['metrics']}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = response.read().decode()
    assert "kafka_server_fetchsessioncache_numincrementalfetchsessions 0" in text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{broker.ready['metrics']}/secrets", timeout=30)


def test_sigstop_of_parent_does_not_end_broker(broker: "Broker") -> None:
    broker.process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    assert broker.process.poll() is None
    broker.process.send_signal(signal.SIGCONT)


YARDSTICK = "import asyncio, email.mime.text, inspect, json, logging, unittest.mock"
"""Modules whose import takes some 0.14 s of processor time where a broker starts in 0.5 s."""


def test_start_time_and_memory(start_broker: "Callable[..., Broker]") -> None:
    """The aim is 0.6 s and 110 MiB. Several processes may share this machine's cores, and machines differ, so processor
    time is compared with that of other imports."""
    start_broker().stop()
    broker = start_broker()
    user, system = (int(each) for each in Path(f"/proc/{broker.process.pid}/stat").read_text().split()[13:15])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", YARDSTICK], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    yardstick_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert (user + system) / os.sysconf("SC_CLK_TCK") < 5 * yardstick_s
    assert broker.rss_bytes() < 110 << 20


def test_listening_beyond_loopback_logs_warning(start_broker: "Callable[..., Broker]") -> None:
    far = start_broker(listen="0.0.0.0:0")
    assert "no TLS" in far.await_log("listens_beyond_loopback")[0]["reason"]
    near = start_broker(data="other")
    assert near.log_events("listens_beyond_loopback") == []


def test_metrics_connections_are_bounded(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker("--metrics", "127.0.0.1:0")
    host, _, port = broker.ready["metrics"].rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(MAX_CONNECTIONS + 1)]
    with suppress(ConnectionResetError):
        assert idle[-1].recv(1) == b""
    for sock in idle:
        sock.close()
