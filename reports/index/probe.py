"""The matrices of sections x brokers (of the probe) and sections x clients, and the cases that changed since the
previous night."""

from dataclasses import dataclass

from reports.job_rows import Row, Rows
from reports.jobs.nights import GOOD
from reports.night import CLIENT

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
class FailedCase:
    """A case that did not pass, and the command that plays it again."""

    case_id: str
    level: str
    outcome: str
    command: str


@dataclass(frozen=True, slots=True)
class ProbeCell:
    """One section of the probe on one target in one night."""

    tone: str
    """As in the matrix."""
    sign: str
    passed: int
    judged: int
    """The section's cases that say something about the target."""
    title: str
    changed: tuple[Changed, ...]
    target: str
    night: str
    failed: tuple[FailedCase, ...]
    mark: str
    """The place of the page that lists what failed; empty if nothing did."""


@dataclass(frozen=True, slots=True)
class ProbeLine:
    section: str
    cells: tuple[ProbeCell | None, ...]

    @property
    def is_steady(self) -> bool:
        return all(cell is None or (cell.tone == "passed" and not cell.changed) for cell in self.cells)


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Sections x targets."""

    targets: tuple[str, ...]
    lines: tuple[ProbeLine, ...]
    changes: tuple[Changed, ...]
    """Those for the worse come first."""


def is_client(row: Row) -> bool:
    """Return whether the row is about a client. Others are about a broker in the probe."""
    target: str = row["target"]
    return target.startswith(CLIENT)


def table_of(rows: Rows) -> CaseTable:
    """Return the matrix of these rows of ``reports.jobs.nights.probe_sections``."""
    targets = tuple(sorted({row["target"] for row in rows}))
    known = {(row["section"], row["target"]): row for row in rows}
    lines = tuple(
        ProbeLine(section, tuple(_cell(known.get((section, target))) for target in targets))
        for section in sorted({row["section"] for row in rows})
    )
    changed = [change for line in lines for cell in line.cells if cell is not None for change in cell.changed]
    changed.sort(key=lambda change: (_ORDER.index(change.word), change.target, change.case_id))
    return CaseTable(targets, lines, tuple(changed))


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
    words = row["target"] if is_client(row) else f"probe {row['target']}"
    failed = tuple(FailedCase(**one, command=f"./crucible {words} --case {one['case_id']}") for one in row["failed"])
    mark = f"probe-{row['section']}-{row['target'].replace(' ', '-')}" if failed else ""
    return ProbeCell(tone, sign, row["passed"], judged, title, changed, row["target"], row["night"], failed, mark)
