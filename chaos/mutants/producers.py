"""Mutants of what a partition remembers of idempotent producers (KIP-98, KAFKA-15195)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant

STATES = "reference_broker.log.producer_state:ProducerStates"


@mutant(f"{STATES}._check_one")
def retries_appended_again(original: Function, self: Any, producer: Any, header: Any) -> Any:
    """A batch that was written before is appended again, because nothing is remembered of its producer (P-1)."""
    return None
