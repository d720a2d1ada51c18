"""A node whose process may open few files: connections do not take the descriptors that files and syncs need."""

import json
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from reference_broker.serve.tests.test_hostile_input import API_VERSIONS_0, framed, read_frame
from reference_broker.serve.tests.test_hostile_memory import topic, written

pytestmark = pytest.mark.live

LIMIT = 200
IDLE = 400
PRODUCES = 20


def test_more_idle_connections_than_descriptors_fail_no_request(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "reference_broker.serve.main", "--listen", "127.0.0.1:0"]
    words += ["--data", str(tmp_path / "data"), "--config", "log.flush.interval.messages=1"]
    limited = ["/bin/sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh", *words]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=log)
    idle: list[socket.socket] = []
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 20)[0], (tmp_path / "log").read_text()
        host, _, port = json.loads(process.stdout.readline())["listen"].rpartition(":")
        honest = socket.create_connection((host, int(port)), timeout=30)
        idle.append(honest)
        honest.sendall(topic())
        assert read_frame(honest)
        while not written(honest, 100):
            time.sleep(0.02)  # The topic has no leader yet.
        idle += [socket.create_connection((host, int(port)), timeout=30) for _ in range(IDLE)]
        assert all(written(honest, 100) for _ in range(PRODUCES))
        alive = [sock for sock in idle[1:] if is_served(sock)]
        assert 20 < len(alive) < LIMIT
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "crashed" not in (tmp_path / "log").read_text()
    finally:
        for sock in idle:
            sock.close()
        if process.poll() is None:
            process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def is_served(sock: socket.socket) -> bool:
    with suppress(ConnectionResetError, BrokenPipeError, AssertionError):
        sock.sendall(framed(API_VERSIONS_0))
        return bool(read_frame(sock))
    return False
