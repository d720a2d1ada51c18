"""Writes the benchmark report: one HTML file with the table and the pictures, beside the stored figures."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bench import plots
from bench.results import Results, Row, commit, machine, table

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Crucible benchmark {title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th, td {{ text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }}
.missed td:last-child {{ color: #a33; font-weight: 600; }}
.curves {{ display: flex; flex-wrap: wrap; }}
svg {{ max-width: 100%; height: auto; }}
code {{ font-size: 13px; }}
</style>
<h1>Benchmark {title}</h1>
<p>{where}</p>
<h2>Figures</h2>
<p>Median (lowest-highest). The ratio says how many times better the reference is, taken pair by pair.</p>
{missing}
{table}
{ratios}
{curves}
<h2>Settings beside the defaults</h2>
<p><code>{settings}</code></p>
</html>
"""


def write(results: Results, stored: Path) -> Path:
    """Writes ``stored`` with ``.html`` for its ending, and returns that path."""
    path = stored.with_suffix(".html")
    picture = plots.ratios(results.rows)
    curves = "".join(plots.growth(curve) for curve in results.curves)
    about = machine()
    where = f"{about['cpu']}, {about['cores']} cores, {about['system']}, Python {about['python']}, commit {commit()}"
    page = _PAGE.format(
        title=escape(stored.stem),
        where=escape(where),
        missing=_missing(results.missing),
        table=_table(results.rows, results.peer),
        ratios=f"<h2>Beside the peer</h2>\n{picture}" if picture else "",
        curves=f'<h2>How costs grow</h2>\n<div class="curves">{curves}</div>' if curves else "",
        settings=escape(", ".join(f"{key}={value}" for key, value in sorted(results.settings.items())) or "none"),
    )
    path.write_text(page)
    return path


def _table(rows: Sequence[Row], peer: str | None) -> str:
    heads = ("work", "reference", peer or "", "ratio" if peer else "", "goal")
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for row, cells in zip(rows, table(rows), strict=True):
        mark = ' class="missed"' if row.reached is False else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _missing(missing: Mapping[str, str]) -> str:
    return "".join(f"<p><b>{escape(row)} could not be measured:</b> {escape(why)}</p>" for row, why in missing.items())
