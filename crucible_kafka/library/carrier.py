"""The interface of what a node runs on: a thread or a process starts, reaches and ends it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from crucible_kafka.library.plain_values import Plain

START_LIMIT_S = 60.0
"""The longest wait for a node that starts. It is ready in well under a second on a quiet machine."""
COMMAND_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The specification of a node."""

    node_id: int
    data: Path
    config: Mapping[str, str]
    listen: str | None
    """HOST:PORT, or None if ``config`` has listeners."""
    standing: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Commands that hold from the start on: rules and the like."""


class Carrier(Protocol):
    """One node that was started. No method but ``start`` and ``command`` raises."""

    node_id: int

    @property
    def is_running(self) -> bool: ...

    @property
    def pid(self) -> int:
        """The process that the node runs in."""
        ...

    @property
    def why_ended(self) -> str:
        """Reason why the node has ended by itself, empty if it runs or if a test has ended it."""
        ...

    @property
    def has_crashed(self) -> bool:
        """Whether the node has ended by itself after it was ready. A process that SIGKILL or SIGTERM has ended was
        ended by somebody."""
        ...

    def start(self, spec: NodeSpec) -> None:
        """Begin to start the node. ``wait_ready`` must follow. Raise StartFailed."""
        ...

    def wait_ready(self, limit_s: float) -> None:
        """Wait until the node serves clients. Raise StartFailed."""
        ...

    def command(self, name: str, arguments: Mapping[str, Plain], limit_s: float = COMMAND_LIMIT_S) -> Plain:
        """Carry out a command of ``InsideNode``. Raise NodeDead, CrucibleTimeout, NotPossible."""
        ...

    def kill(self) -> None:
        """End the node at once. Its files stay as they are."""
        ...

    def stop(self, limit_s: float) -> None:
        """End the node cleanly, and at once when ``limit_s`` is over."""
        ...

    def log_lines(self) -> list[str]:
        """Return the node's log, of all its incarnations, as lines of JSON."""
        ...


def does_not_run(carrier: Carrier, purpose: str) -> str:
    """Return the sentence about a node that does not run, so that it cannot do what it is to do."""
    why = f" ({carrier.why_ended})" if carrier.why_ended else ""
    return f"Node {carrier.node_id} does not run{why}, so it cannot {purpose}: call restart() first."
