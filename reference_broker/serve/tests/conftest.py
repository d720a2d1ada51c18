"""A broker process for live tests."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

READY_LIMIT_S = 20.0


def _listen(listen: str) -> list[str]:
    return ["--listen", listen] if listen else []


class Broker:
    """One broker process of a test; ``listen`` is HOST:PORT, or empty if the configuration has listeners. ``before``
    precedes the command."""

    def __init__(
        self, data: Path, log: Path, *words: str, listen: str = "127.0.0.1:0", before: Sequence[str] = ()
    ) -> None:
        self.log = log
        command = [sys.executable, "-m", "reference_broker.serve.main", *_listen(listen), "--data", str(data), *words]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*before, *command],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_LIMIT_S)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.kill()
            raise AssertionError(f"the broker did not start: {log.read_text()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.listen: str = self.ready["listen"]

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host, int(port)

    def log_events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def await_log(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 5
        while len(found := self.log_events(event)) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """``start_broker(*words, data=..., listen=...)``; all processes are killed at the end."""
    started: list[Broker] = []

    def start(*words: str, data: str = "data", listen: str = "127.0.0.1:0") -> Broker:
        broker = Broker(tmp_path / data, tmp_path / f"broker-{len(started)}.log", *words, listen=listen)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.kill()


@pytest.fixture
def broker(start_broker: Callable[..., Broker]) -> Broker:
    return start_broker()
