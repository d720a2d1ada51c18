"""The requests that other nodes send to a node, recorded in a file for faults that replay them."""

from pathlib import Path

from chaos.faults.node_requests import OF_NODES, Recorded
from chaos.hooks.trace import PassiveHook
from chaos.interceptor.frame_faults import RequestStream
from chaos.interceptor.raw_frames import request_frame
from reference_broker.core.events import Event, Request
from reference_broker.ports.node_ports import Now


def recorded_at(folder: Path, node: int) -> Path:
    return folder / f"requests-of-{node}"


class PeerRequestRecorder(PassiveHook):
    """Record the requests that other nodes send to this one, for the fault that replays them.

    Each node has one file for all its incarnations. A line has the time of the run in microseconds and the frame as
    hexadecimal digits.
    """

    def __init__(self, path: Path, origin_us: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._origin_us = origin_us

    def arrives(self, now: Now, event: Event) -> None:
        if isinstance(event, Request) and event.api_key in OF_NODES and event.tag.role == "peer":
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{now.mono_us - self._origin_us} {request_frame(event).hex()}\n")


def recorded(folder: Path, node: int) -> Recorded:
    """Read what the node has recorded so far. A line that is still being written is omitted."""
    found = Recorded()
    path = recorded_at(folder, node)
    text = path.read_text(encoding="ascii") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            at_us, frame = line.split()
            for request in RequestStream().arrived(0, bytes.fromhex(frame)):
                found.add(int(at_us), node, request.api_key, request.api_version, request.client_id, request.body)
    return found
