"""Counts what a search has struck: the kind of each fault, with the role and the state of the node at that moment."""

from collections import Counter
from collections.abc import Iterable, Mapping

from chaos.sim.fault_scheduler import Point
from chaos.sim.verdict import SimVerdict


def coverage_of(verdicts: Iterable[SimVerdict]) -> dict[Point, int]:
    """Returns how often all seeds together struck each (kind, role, state)."""
    found = Counter[Point]()
    for verdict in verdicts:
        found.update(dict(verdict.coverage))
    return dict(sorted(found.items()))


def coverage_table(coverage: Mapping[Point, int]) -> list[str]:
    """Returns lines for the terminal. Each shows a kind and a role, with the states and how often each was struck."""
    if not coverage:
        return []
    rows: dict[tuple[str, str], list[str]] = {}
    for (kind, role, state), times in coverage.items():
        rows.setdefault((kind, role), []).append(f"{state} {times}")
    lines = [f"{sum(coverage.values())} faults struck at {len(coverage)} points (kind, role, state):"]
    return lines + [f"  {kind:<18} {role:<9} {', '.join(states)}" for (kind, role), states in rows.items()]
