"""Mutants of what a leader acknowledges."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant


@mutant("reference_broker.replication.leader.leaders:Leaders.acknowledge")
def acknowledged_before_replicated(original: Function, self: Any, offsets: Any, timeout_ms: int, answered: Any) -> None:
    """A leader answers acks=all as soon as its own log holds the records (F-22)."""
    answered({})
