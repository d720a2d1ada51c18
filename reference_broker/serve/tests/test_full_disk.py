"""A broker on a file system that is really full: a small tmpfs in a user namespace, which needs no root."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reference_broker.core.tests.node_world import create_request
from reference_broker.records.record import Record, build, read_all
from reference_broker.serve.tests.conftest import Broker
from reference_broker.serve.tests.test_hostile_input import connected, read_frame
from reference_broker.serve.tests.test_hostile_memory import fetch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.messages import decode_response, encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = pytest.mark.live

MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$0" && echo mounted && exec cat'
SIZES = (20_000, 1_000, 1)
"""Of the values that are written, in bytes, until no value of that size fits."""
MAX_TOPICS = 100
"""Number of topics that do not fit into what is left of the metadata log's last page."""


class SmallDisk:
    """A file system of 1 MiB that only processes with the words ``before`` see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._holder = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", MOUNT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout is not None
        first_line = self._holder.stdout.readline().decode().strip()
        if first_line != "mounted":
            self.close()
            pytest.skip(f"this kernel does not allow mounts in a user namespace: {first_line}")

    @property
    def before(self) -> list[str]:
        return ["nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials", "--"]

    def grow(self) -> None:
        subprocess.run([*self.before, "mount", "-o", "remount,size=16m", str(self.folder)], check=True)

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(30)
        self._holder.stdout.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        pytest.skip("there is no unshare or nsenter (util-linux)")
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()


def test_broker_on_full_disk_serves_reads_and_recovers(small_disk: SmallDisk, tmp_path: Path) -> None:
    def start(log: str) -> Broker:
        return Broker(small_disk.folder / "data", tmp_path / log, before=small_disk.before)

    broker = start("first.log")
    try:
        with connected(broker) as sock:
            assert created(sock, "t") == 0
            while produced(sock, "first") != 0:
                time.sleep(0.02)  # The topic has no leader yet.
            written = ["first"]
            for size in SIZES:
                while not (error := produced(sock, value := f"{len(written)}:".ljust(size, "."))):
                    written.append(value)
                assert error == ErrorCode.kafka_storage_error
            assert 20 < len(written) < 500
            assert values(sock) == written
            errors = (created(sock, f"topic-{number}") for number in range(MAX_TOPICS))
            assert next(filter(None, errors), 0) == ErrorCode.kafka_storage_error
            small_disk.grow()
            assert produced(sock, "there is room") == 0
            assert created(sock, "another") == 0
            written.append("there is room")
        assert not broker.log_events("crashed")
        broker.kill()
        broker = start("second.log")
        with connected(broker) as sock:
            assert values(sock) == written
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_start_on_full_disk_fails_with_message_and_succeeds_with_room(small_disk: SmallDisk, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    broker = Broker(small_disk.folder / "data", log, before=small_disk.before)
    try:
        with connected(broker) as sock:
            assert created(sock, "t") == 0
            while produced(sock, "kept") != 0:
                time.sleep(0.02)
        broker.kill()
        subprocess.run([*small_disk.before, "sh", "-c", f"cat /dev/zero > {small_disk.folder}/ballast"], check=False)
        with pytest.raises(AssertionError, match="the broker did not start"):
            Broker(small_disk.folder / "data", tmp_path / "full.log", before=small_disk.before)
        lines = (tmp_path / "full.log").read_text().splitlines()
        assert "No space left on device" in lines[-1]
        assert len([line for line in lines if "No space" in line]) == 1
        small_disk.grow()
        broker = Broker(small_disk.folder / "data", log, before=small_disk.before)
        with connected(broker) as sock:
            assert values(sock) == ["kept"]
    finally:
        broker.kill()


def response_to(sock: socket.socket, key: int, version: int, body: object) -> Any:
    sock.sendall(b"".join(encode_request(key, version, 1, "client", body)))
    return decode_response(key, version, memoryview(read_frame(sock)))[1]


def created(sock: socket.socket, name: str) -> int:
    return int(response_to(sock, ApiKey.CREATE_TOPICS, 7, create_request(name)).topics[0].error_code)


def produced(sock: socket.socket, value: str) -> int:
    """Return the error."""
    partition = ProducePartition(0, build([Record(value=value.encode())]))
    body = ProduceRequest(-1, 5000, [ProduceTopic("t", NO_TOPIC_ID, [partition])])
    return int(response_to(sock, ApiKey.PRODUCE, 9, body).responses[0].partitions[0].error_code)


def values(sock: socket.socket) -> list[str]:
    sock.sendall(fetch())
    response: Any = decode_response(ApiKey.FETCH, 11, memoryview(read_frame(sock)))[1]
    (partition,) = response.responses[0].partitions
    assert partition.error_code == ErrorCode.none
    return [(record.value or b"").decode() for _, record in read_all(partition.records)]
