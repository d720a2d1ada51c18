"""What a search has struck: kind of fault, by role and state of the node at that moment."""

from collections.abc import Iterable, Mapping

from chaos.sim.verdict import SimVerdict

Point = tuple[str, str, str]


def coverage_of(verdicts: Iterable[SimVerdict]) -> dict[Point, int]:
    """Summed over all seeds, by (kind, role, state)."""
    found: dict[Point, int] = {}
    for verdict in verdicts:
        for point, times in verdict.coverage:
            found[point] = found.get(point, 0) + times
    return dict(sorted(found.items()))


def coverage_table(coverage: Mapping[Point, int]) -> list[str]:
    """Lines for the terminal: a kind and a role each, with the states and how often each was struck."""
    if not coverage:
        return []
    rows: dict[tuple[str, str], list[str]] = {}
    for (kind, role, state), times in coverage.items():
        rows.setdefault((kind, role), []).append(f"{state} {times}")
    total = sum(coverage.values())
    lines = [f"{total} faults struck at {len(coverage)} points (kind, role, state):"]
    return lines + [f"  {kind:<18} {role:<9} {', '.join(states)}" for (kind, role), states in rows.items()]
