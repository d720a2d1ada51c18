"""Mutants of what a leader acknowledges."""

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Mutant

Function = Callable[..., Any]


def _acknowledged_before_replicated(original: Function) -> Function:  # noqa: ARG001
    def acknowledge(self: Any, offsets: Any, timeout_ms: int, answered: Any) -> None:  # noqa: ARG001
        answered({})

    return acknowledge


MUTANTS = (
    Mutant(
        "acknowledged_before_replicated",
        "A leader answers acks=all as soon as its own log holds the records.",
        "node",
        "reference_broker.replication.leader.leaders:Leaders.acknowledge",
        ("self", "offsets", "timeout_ms", "answered"),
        _acknowledged_before_replicated,
        ("F-22",),
    ),
)
