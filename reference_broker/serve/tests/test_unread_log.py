"""A node whose stderr is full, closed or never read serves requests, and ends at SIGTERM."""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 7, -1)
GARBAGE = struct.pack(">i", -1)
LINES = 1200
"""More lines than a pipe holds; the log's own limit of lines is switched off for them."""
NO_LIMIT = "from reference_broker.serve import log_lines; log_lines.BURST_LINES = 10**9"
START = "import sys; from reference_broker.serve.main import main; sys.exit(main())"


@contextmanager
def broker(folder: Path, stderr: int | None) -> Iterator[tuple["subprocess.Popen[bytes]", tuple[str, int]]]:
    """``stderr`` None closes it before the broker starts."""
    words = [sys.executable, "-c", f"{NO_LIMIT}; {START}", "--listen", "127.0.0.1:0", "--data", str(folder / "data")]
    if stderr is None:
        words = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *words]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr)
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], 20)
        assert readable
        host, _, port = json.loads(process.stdout.readline())["listen"].rpartition(":")
        yield process, (host, int(port))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def cause_a_line(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as sock:
        sock.sendall(GARBAGE)
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def assert_serves(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as sock:
        sock.settimeout(5)
        sock.sendall(API_VERSIONS_0)
        assert len(sock.recv(8)) == 8


@pytest.mark.parametrize("kind", ["unread", "full", "closed", "reader gone"])
def test_node_serves_and_ends_with_unusable_stderr(tmp_path: Path, kind: str) -> None:
    reading, writing = os.pipe()
    if kind == "full":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    if kind == "reader gone":
        os.close(reading)
    with broker(tmp_path, None if kind == "closed" else writing) as (process, address):
        for _ in range(LINES if kind == "unread" else 3):
            cause_a_line(address)
        assert_serves(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    os.close(writing)
    if kind != "reader gone":
        os.close(reading)


def test_closed_stderr_descriptor_is_not_reused(tmp_path: Path) -> None:
    with broker(tmp_path, None) as (process, address):
        pid = process.pid
        assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (2,)] == ["/dev/null"]
        assert_serves(address)
