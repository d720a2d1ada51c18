"""Write the table of fault kinds: from their declarations into docs/scenario-keys.md.

Call ``python -m tools.fault_kind_table``. The table is between ``<!-- fault kinds -->`` and ``<!-- end of fault kinds
-->``. A test fails while it is not up to date.
"""

from pathlib import Path

from scenarios.fault_kinds import FAULT_KINDS, STATES, FaultKind

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scenario-keys.md"
BEGIN, END = "<!-- fault kinds -->\n", "<!-- end of fault kinds -->"


def updated(page: str) -> str:
    """Return the page's text with a new table."""
    before, _, rest = page.partition(BEGIN)
    rows = "".join(f"| `{kind.name}` | {_when(kind)} | {kind.does} |\n" for kind in FAULT_KINDS.values())
    return f"{before}{BEGIN}| kind | fires | what it does |\n| --- | --- | --- |\n{rows}{END}{rest.partition(END)[2]}"


def _when(kind: FaultKind) -> str:
    states = ["any state"] if kind.on == STATES else [f"`{state}`" for state in kind.on]
    return ", ".join(["at a time"] * kind.timed + states)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
