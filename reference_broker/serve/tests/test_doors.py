"""Sockets open when the node listens; the ready line is written when it is ready; the node may be stopped before
either."""

import json
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

CODE = """
import sys
from types import SimpleNamespace
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core import node as module
from reference_broker.core.events import Close, SetTimer
from reference_broker.core.events import Request, TimerFired
from reference_broker.metrics.metrics import Metrics


class Slow:
    '''Listen at once, become ready with the first request of a client, and log each step.'''

    def __init__(self, *_, **__):
        self.listening = self.ready = self.stopped = False
        self.metrics = Metrics()
        self.broker = SimpleNamespace(config=BrokerConfig())

    def start(self, now):
        print("started", file=sys.stderr, flush=True)
        return (SetTimer(1, now.mono_us + 50_000),)

    def handle(self, now, event):
        if isinstance(event, TimerFired):
            self.listening = sys.argv[2] != "never"
        if isinstance(event, Request):
            self.ready = True
            return (Close(event.connection, "not yet"),)
        return ()

    def shutdown(self, now):
        self.stopped = True
        return ()

    def registered_address(self, node_id):
        return None


module.Node = Slow
from reference_broker.serve.main import run_broker

sys.exit(run_broker("127.0.0.1:" + sys.argv[3], sys.argv[1], metrics_listen="127.0.0.1:0"))
"""
API_VERSIONS_V0 = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found: int = taken.getsockname()[1]
        return found


def start(tmp_path: Path, port: int, when: str) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-c", CODE, str(tmp_path / "data"), when, str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline() == b"started\n"  # From now on it handles SIGTERM.
    return process


def output(process: "subprocess.Popen[bytes]", within_s: float) -> bytes:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], within_s)
    return process.stdout.readline() if readable else b""


def connected(port: int) -> socket.socket:
    for _ in range(500):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            select.select([], [], [], 0.02)
    raise AssertionError("the door stayed shut")


def test_sockets_open_before_node_is_ready(tmp_path: Path, port: int) -> None:
    with start(tmp_path, port, "soon") as process:
        assert output(process, 0.3) == b""
        with connected(port) as client:
            client.sendall(API_VERSIONS_V0)
            assert client.recv(1) == b""
        ready = json.loads(output(process, 5))
        assert ready["ready"] is True
        assert ready["metrics"].startswith("127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_node_that_never_listens_ends_on_sigterm(tmp_path: Path, port: int) -> None:
    with start(tmp_path, port, "never") as process:
        assert output(process, 0.3) == b""
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_node_that_is_never_ready_ends_on_sigterm(tmp_path: Path, port: int) -> None:
    with start(tmp_path, port, "soon") as process:
        assert output(process, 0.3) == b""
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""
