"""The probe's matrix of sections x targets, and the cases that changed since the night before."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.index.collected import Row
from reports.jobs.nights.probed import GOOD

_ORDER = ("worse", "changed", "better", "new")


@dataclass(frozen=True, slots=True)
class Changed:
    target: str
    case_id: str
    was: str
    now: str

    @property
    def word(self) -> str:
        if self.now == GOOD:
            return "better" if self.was else "new"
        return "worse" if self.was == GOOD and self.now else "changed"


@dataclass(frozen=True, slots=True)
class ProbeCell:
    """``judged`` of the section's cases say something about the target. ``tone`` is that of the matrix."""

    tone: str
    sign: str
    passed: int
    judged: int
    title: str
    changed: tuple[Changed, ...]


@dataclass(frozen=True, slots=True)
class ProbeLine:
    section: str
    cells: tuple[ProbeCell | None, ...]

    @property
    def is_steady(self) -> bool:
        return all(cell is None or (cell.tone == "passed" and not cell.changed) for cell in self.cells)


def targets(rows: Sequence[Row]) -> list[str]:
    return sorted({row["target"] for row in rows})


def lines(rows: Sequence[Row]) -> list[ProbeLine]:
    known = {(row["section"], row["target"]): row for row in rows}
    return [
        ProbeLine(section, tuple(_cell(known.get((section, target))) for target in targets(rows)))
        for section in sorted({row["section"] for row in rows})
    ]


def _cell(row: Row | None) -> ProbeCell | None:
    if row is None:
        return None
    changed = tuple(Changed(row["target"], one["case_id"], one["was"], one["now"]) for one in row["changed"])
    judged = row["cases"] - row["unjudged"]
    tone, sign = ("failed", "✕") if row["must"] else ("mixed", "~") if row["should"] else ("passed", "✓")
    if not judged:
        tone, sign = "none", "–"
    title = f"{row['passed']} of {judged} cases passed; {row['must']} MUST and {row['should']} SHOULD did not"
    if row["unjudged"]:
        title += f"; {row['unjudged']} more say nothing about this target"
    return ProbeCell(tone, sign, row["passed"], judged, title, changed)


def changes(every: Sequence[ProbeLine]) -> list[Changed]:
    """What got worse comes first."""
    found = [one for line in every for cell in line.cells if cell is not None for one in cell.changed]
    return sorted(found, key=lambda one: (_ORDER.index(one.word), one.target, one.case_id))
