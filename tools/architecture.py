"""Draw docs/architecture.svg: from contracts, tables of rooms, and imports.

Call ``python -m tools.architecture``. A test fails while the picture is not up to date.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path
from textwrap import wrap

from tools.import_circles import imports_at_run_time

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
BROKER = "reference_broker"
SUITE = ("chaos", "bench", "scenarios", "reports")

WIDTH, MARGIN, GAP = 1180, 20, 10
LEFT_WIDTH = 390
ROW_HEIGHT, ROOM_HEIGHT, TITLE_HEIGHT = 30, 96, 34
TEXT_COLUMNS = 50
"""Characters that fit into a line of a box on the left."""


def layers() -> list[list[str]]:
    """Return the broker's rooms from the top down. Rooms of one layer do not import each other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    inside = next(contract for contract in contracts if contract.get("containers") == [BROKER])
    return [[room.strip() for room in layer.split("|")] for layer in inside["layers"]]


def descriptions(readme: Path) -> dict[str, str]:
    """Return what the table of rooms on a page says of each room: ``| [name](...) | text |``."""
    rows = re.findall(r"^\| \[(\w+)\]\([^)]*\) \| (.*?) \|$", readme.read_text(), re.MULTILINE)
    return {name: text.replace("`", "") for name, text in rows}


def imported_rooms(room: str, imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return the other rooms that ``room`` imports outside its tests, sorted. ``imports`` is by module."""
    found = {
        name.partition(".")[0]
        for module, names in imports.items()
        if module.partition(".")[0] == room and ".tests" not in module
        for name in names
    }
    return sorted(found - {room})


def drawing() -> str:
    """Return the whole picture as SVG text."""
    rows = layers()
    height = 2 * MARGIN + TITLE_HEIGHT + max(len(rows) * (ROW_HEIGHT + 4), len(SUITE) * (ROOM_HEIGHT + GAP)) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_suite(),
        *_broker(rows, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _suite() -> list[str]:
    said = descriptions(ROOT / "docs" / "architecture.md")
    imports = imports_at_run_time(ROOT, (*SUITE, BROKER))
    parts = [_text(MARGIN, MARGIN + 18, "the suite", bold=True)]
    top = MARGIN + TITLE_HEIGHT
    for room in SUITE:
        parts.append(_box(MARGIN, top, LEFT_WIDTH, ROOM_HEIGHT, "#eef3fa"))
        parts.append(_text(MARGIN + 12, top + 20, room, bold=True))
        lines = wrap(said[room], TEXT_COLUMNS, break_on_hyphens=False)
        parts += [_text(MARGIN + 12, top + 38 + 15 * place, line) for place, line in enumerate(lines[:3])]
        names = ", ".join(imported_rooms(room, imports)) or "nothing"
        parts.append(_text(MARGIN + 12, top + ROOM_HEIGHT - 10, f"imports {names}", faint=True))
        top += ROOM_HEIGHT + GAP
    return parts


def _broker(rows: list[list[str]], height: int) -> list[str]:
    said = descriptions(ROOT / BROKER / "README.md")
    left = MARGIN + LEFT_WIDTH + 2 * GAP
    width = WIDTH - left - MARGIN
    parts = [
        _box(left, MARGIN, width, height - 2 * MARGIN, "#f7f7f4"),
        _text(left + 12, MARGIN + 20, f"{BROKER}: each room imports only rooms below it", bold=True),
    ]
    top = MARGIN + TITLE_HEIGHT
    for layer in rows:
        each_width = (width - 2 * GAP - GAP * (len(layer) - 1)) / len(layer)
        for place, room in enumerate(layer):
            x = left + GAP + place * (each_width + GAP)
            columns = int((each_width - 130) / 7.4)
            parts.append(_box(x, top, each_width, ROW_HEIGHT, "#e9efe4"))
            parts.append(_text(x + 10, top + 20, room, bold=True))
            parts.append(_text(x + 118, top + 20, _cut(said[room], columns)))
        top += ROW_HEIGHT + 4
    return parts


def _cut(text: str, columns: int) -> str:
    """Return as many whole words as fit."""
    if len(text) <= columns:
        return text
    return text[:columns].rpartition(" ")[0].rstrip(",;:") + " …"


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="#8a8f98"/>'


def _text(x: float, y: float, text: str, *, bold: bool = False, faint: bool = False) -> str:
    style = ' font-weight="bold"' if bold else ' fill="#666666"' if faint else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawing())
