"""What a person who watches a run wants to know at this moment, as one value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from bench.fleet.early_signs import SIGNS_OF


@dataclass(frozen=True, slots=True)
class RunView:
    """A moment of a run.

    - ``phase`` says what is done now, and ``load_s`` since when the load runs; it is negative before the load.
    - ``report`` is the fleet's last one (``bench/fleet/README.md``, the event ``progress``), empty before the first.
    - ``under_way`` holds the faults that have begun and not ended, and ``hits`` counts all hits so far.
    - ``next_fault`` is the name of the next fault at a time and the seconds until then, if there is one.
    - ``broken`` holds guarantees that clients or nodes have seen broken. More may be found at the end.
    """

    phase: str
    load_s: float
    whole_load_s: float
    report: Mapping[str, int] = field(default_factory=dict)
    under_way: tuple[str, ...] = ()
    hits: int = 0
    next_fault: tuple[str, float] | None = None
    broken: tuple[str, ...] = ()


Show: TypeAlias = Callable[[RunView], None]


def seen_by_clients(report: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the guarantees that the fleet's report shows broken."""
    return tuple(name.removeprefix(SIGNS_OF) for name, count in report.items() if name.startswith(SIGNS_OF) and count)
