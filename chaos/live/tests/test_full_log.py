"""Nodes whose stderr is a file on a full disk serve under load, and end at SIGTERM."""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.live.tests.test_cluster import Admin, Cluster
from chaos.live.tests.test_killed_suite import TOPIC, Writer

GARBAGE = struct.pack(">i", -1)
"""A frame of a negative size. It costs its connection, and the node one line."""
LINES = 50

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full"),
]


@pytest.mark.nightly
def test_three_nodes_whose_logs_cannot_be_written_acknowledge_keep_and_end(tmp_path: Path) -> None:
    data = tmp_path / "c"
    data.mkdir()
    for node in range(3):
        (data / f"node-{node}.log").symlink_to("/dev/full")
    cluster = Cluster(data, 3)
    Admin(cluster.bootstrap).create(TOPIC, replicas=3)
    writer = Writer(cluster.bootstrap)
    for _ in range(LINES):
        for address in cluster.bootstrap:
            cause_a_line(address)
        writer.write()
    writer.write_some()
    assert len(writer.acknowledged) > LINES
    writer.assert_kept(cluster.bootstrap)
    assert cluster.end() == ""


def cause_a_line(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(GARBAGE)
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""
