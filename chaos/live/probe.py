"""A connection that shows the effect of a link's fault.

Toxiproxy counts the bytes of a connection only when it ends, so its counters show nothing about connections that
survive a fault.
"""

import socket
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import Literal

LIMIT_S = 1.5
REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions v0 with correlation ID 1 and no client ID. A Kafka broker responds with some 100 bytes."""

Outcome = Literal["responded", "silent", "closed", "refused"]


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe."""

    outcome: Outcome
    response_bytes: int = 0
    pieces: int = 0
    """Number of reads in which the responses arrived."""
    first_us: int = 0
    """Time from the send to the first byte of the responses; 0 if none came."""
    whole_us: int = 0
    """Time from the send to the last byte of the responses; 0 if it did not come."""
    limit_s: float = LIMIT_S
    """Time limit of the probe."""

    def finding(self) -> str:
        if self.outcome == "responded":
            return (
                f"a probe got {self.response_bytes} bytes in {self.pieces} pieces, the first after "
                f"{self.first_us / 1000:.1f} ms, the last after {self.whole_us / 1000:.1f} ms"
            )
        silent = f"got no response within {self.limit_s:g} s"
        what = {"silent": silent, "closed": "was cut off", "refused": "was refused"}
        had = f" after {self.response_bytes} bytes of responses" if self.response_bytes else ""
        return f"a probe {what[self.outcome]}{had}"


def probe(address: str, requests: int = 1, limit_s: float = LIMIT_S) -> Probe:
    """Send ``requests`` ApiVersions requests at once through ``address`` (HOST:PORT). Wait for all responses."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + limit_s
    try:
        sock = socket.create_connection((host, int(port)), timeout=limit_s)
    except OSError:
        return Probe("refused")
    with sock:
        return replace(_exchange(sock, requests, deadline), limit_s=limit_s)


def _exchange(sock: socket.socket, requests: int, deadline: float) -> Probe:
    data, pieces, first_us = b"", 0, 0
    started = time.monotonic()
    try:
        sock.sendall(REQUEST * requests)
        while _whole_frames(data) < requests:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            piece = sock.recv(65_536)
            if not piece:
                return Probe("closed", len(data), pieces, first_us)
            first_us = first_us or int((time.monotonic() - started) * 1e6)
            pieces += 1
            data += piece
    except TimeoutError:
        return Probe("silent", len(data), pieces, first_us)
    except OSError:
        return Probe("closed", len(data), pieces, first_us)
    return Probe("responded", len(data), pieces, first_us, int((time.monotonic() - started) * 1e6))


def _whole_frames(data: bytes) -> int:
    """Return how many whole frames there are in the data."""
    count = position = 0
    while position + 4 <= len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "big")
        if position > len(data):
            break
        count += 1
    return count


class BackgroundProbe:
    """A probe in a thread, so that a silent link does not hold up the run."""

    def __init__(self, address: str, requests: int, limit_s: float) -> None:
        self._result = Probe("silent")
        self._thread = threading.Thread(target=self._probe, args=(address, requests, limit_s), daemon=True)
        self._thread.start()

    def result(self) -> Probe:
        """Wait for the probe."""
        self._thread.join()
        return self._result

    def _probe(self, address: str, requests: int, limit_s: float) -> None:
        self._result = probe(address, requests, limit_s)
