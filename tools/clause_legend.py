"""Write the legend of clause prefixes: from ``reference_broker/clauses.toml`` into reference_broker/README.md.

Call ``python -m tools.clause_legend``. The table is between ``<!-- clauses -->`` and ``<!-- end of clauses -->``. A
test fails while it is not up to date.
"""

import re
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "reference_broker"
PAGE, CLAUSES = FOLDER / "README.md", FOLDER / "clauses.toml"
BEGIN, END = "<!-- clauses -->\n", "<!-- end of clauses -->"
_TITLE = re.compile(r"(?P<subject>.+) \((?P<source>[^()]+)\)")


def updated(page: str, clauses: str) -> str:
    """Return the page's text with a new table. ``clauses`` is the text of ``clauses.toml``."""
    before, _, rest = page.partition(BEGIN)
    rows = "".join(_row(prefix, table) for prefix, table in tomllib.loads(clauses).items() if len(prefix) == 1)
    return f"{before}{BEGIN}| clauses | subject | source |\n| --- | --- | --- |\n{rows}{END}{rest.partition(END)[2]}"


def _row(prefix: str, table: dict[str, str]) -> str:
    title = _TITLE.fullmatch(table["title"])
    if not title:
        raise ValueError(f"the title of [{prefix}] in {CLAUSES.name} does not end with its source in parentheses")
    numbers = [int(key) for key in table if key != "title"]
    return f"| {prefix}-{min(numbers)} to {prefix}-{max(numbers)} | {title['subject']} | {title['source']} |\n"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), CLAUSES.read_text(encoding="utf-8")), encoding="utf-8")
