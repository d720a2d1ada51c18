"""Keeps the requests that other nodes send to this one, for the fault that sends them again.

Each node has one file for all its incarnations. A line has the time of the run in microseconds and the frame as
hexadecimal digits.
"""

from pathlib import Path

from chaos.frame_faults import RequestStream
from chaos.node_requests import OF_NODES, Recorded
from chaos.raw_frames import request_frame
from chaos.trace import PassiveHook
from reference_broker.core.events import Event, Request
from reference_broker.ports.node_ports import Now


def kept_at(claims: Path, node: int) -> Path:
    return claims / f"requests-of-{node}"


class RequestsKept(PassiveHook):
    """Implements core.events.Hooks."""

    def __init__(self, path: Path, origin_us: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._origin_us = origin_us

    def arrives(self, now: Now, event: Event) -> None:
        if isinstance(event, Request) and event.api_key in OF_NODES and event.tag.role == "peer":
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{now.mono_us - self._origin_us} {request_frame(event).hex()}\n")


def recorded(claims: Path, node: int) -> Recorded:
    """Reads what the node has kept so far. A line that is still being written is left out."""
    found = Recorded()
    path = kept_at(claims, node)
    text = path.read_text(encoding="ascii") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            at_us, frame = line.split()
            for request in RequestStream().arrived(0, bytes.fromhex(frame)):
                asked = (request.api_key, request.api_version, request.client_id, request.body)
                found.add(int(at_us), node, *asked)
    return found
