"""A mutant lacks one mechanism and is a broker all the same: it stays up, and a client of others writes and reads.

A mutant that ends at its start, or that serves no client, would turn every scenario red and prove nothing.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kafka
import pytest

from bench.children import ends_with_me
from bench.ports import free_port
from chaos.mutants.registry import all_mutants

pytestmark = [pytest.mark.live, pytest.mark.timeout(4 * 60)]

START = """
import sys
from chaos.mutants.mutant import apply
from chaos.mutants.registry import by_name
apply(by_name(sys.argv.pop(1)))
from crucible_kafka import cli
cli.main()
"""
RECORDS = 40
LIMIT_S = 60
"""Far above what an idle machine needs for each step, since machines that run tests may be busy."""
ON_NODES = tuple(mutant.name for mutant in all_mutants() if mutant.side == "node")
IN_CI = ("change_mark_cleared_when_sent", "position_ignored_by_leader", "apply_as_read", "retries_appended_again")


@contextmanager
def mutated(name: str, folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Run one node with the mutant, and yield its process and address once it takes connections."""
    address = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-c", START, name, "broker", "--listen", address, "--data", str(folder / "data")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=ends_with_me())
        try:
            _await(process, address, folder / "log")
            yield process, address
        finally:
            process.kill()
            process.wait()


def _await(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"the node does not serve: {log.read_text()}")


def writes_and_reads(name: str, folder: Path) -> None:
    with mutated(name, folder) as (process, address):
        wanted = [f"{number}".encode() for number in range(RECORDS)]
        producer = kafka.KafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=1)
        for value in wanted:
            producer.send("hot", value).get(timeout=LIMIT_S)
        producer.close()
        consumer = kafka.KafkaConsumer("hot", bootstrap_servers=address, auto_offset_reset="earliest")
        read: list[bytes] = []
        deadline = time.monotonic() + LIMIT_S
        while len(read) < RECORDS and time.monotonic() < deadline:
            read += [each.value for batch in consumer.poll(timeout_ms=200).values() for each in batch]
        consumer.close()
        assert process.poll() is None, (folder / "log").read_text()
        assert read == wanted


@pytest.mark.parametrize("name", IN_CI)
def test_client_writes_and_reads_on_a_mutant(name: str, tmp_path: Path) -> None:
    writes_and_reads(name, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [node for node in ON_NODES if node not in IN_CI])
def test_client_writes_and_reads_on_every_other_mutant(name: str, tmp_path: Path) -> None:
    writes_and_reads(name, tmp_path)
