"""Expands runs into records, for the checks that compare single values."""

from collections.abc import Iterator
from typing import NamedTuple

from reports.rows import RunRow

Place = tuple[str, int]
"""Topic and partition."""


class Sent(NamedTuple):
    """One value at one offset."""

    offset: int
    writer: str
    sequence: int
    producer_id: int


def expanded(run: RunRow) -> Iterator[Sent]:
    """Yields the values of a run. Foreign values have an empty writer and sequence -1."""
    for step in range(run.count):
        sequence = run.first_sequence + step if run.writer else -1
        yield Sent(run.first_offset + step, run.writer, sequence, run.producer_id)


def named(run: RunRow, value: Sent) -> str:
    """Says which value stands where, for stories."""
    return f"{run.topic}-{run.partition} offset {value.offset}: {value.writer}/{value.sequence}"


def place(run: RunRow) -> Place:
    return (run.topic, run.partition)
