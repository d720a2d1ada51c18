"""Honest clients that come one after the other: each connects, asks for the versions, is answered and leaves."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.hostile.honest import Wait
from bench.hostile.processor import Since, Used

API_VERSIONS_0 = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""Length, key 18, version 0, correlation ID 1, no client ID."""
TRY_S = 10.0
BETWEEN_S = 0.05


@dataclass(slots=True)
class Newcomers:
    """``waits`` holds the time of each, from its connect to its answer. Nobody is counted who came while the node was
    down. ``used`` tells what the event loops of all nodes have used of the processors."""

    ports: Sequence[int]
    used: Callable[[], Mapping[int, Used]]
    waits: list[Wait] = field(default_factory=list)
    _stops: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._come, name="newcomers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        if self._thread is not None:
            self._thread.join(2 * TRY_S)

    def _come(self) -> None:
        number = 0
        while not self._stops.wait(BETWEEN_S):
            since, began_s = Since(self.used), time.monotonic()
            if not _is_answered(self.ports[number % len(self.ports)]):
                continue
            took_s, told = time.monotonic() - began_s, since.told()
            self.waits.append(Wait(began_s, took_s, told.starved_s, told.worked_s))
            number += 1


def _is_answered(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TRY_S) as connection:
            connection.sendall(API_VERSIONS_0)
            return bool(connection.recv(1))
    except OSError:
        return False
