"""The benchmark report: one HTML file with the table and the pictures, beside the stored figures.

The pictures show how many times better the reference is, and how costs grow.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter

from bench.drawing import INK, STYLE, WIDTH_IN, svg
from bench.machine import where_measured
from bench.rows.results import Curve, Figure, ResultRow, Results, table

COLOURS = ("#0b6e99", "#c4552d")


def ratios(rows: Sequence[ResultRow]) -> str | None:
    """Return an SVG with a line for each row that has a ratio: median, spread and goal. None if no row has a ratio."""
    shown = [(row, row.ratio) for row in rows if row.ratio is not None]
    if not shown:
        return None
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, 0.9 + 0.27 * len(shown)), layout="constrained")
        axes = picture.subplots()
        axes.set_xscale("log")
        axes.axvline(1.0, color=INK, linewidth=0.8)
        for line, (row, ratio) in enumerate(shown):
            colour = COLOURS[0] if row.reached is not False else COLOURS[1]
            axes.plot([min(ratio.values), max(ratio.values)], [line, line], color=colour, linewidth=2, alpha=0.45)
            axes.plot([ratio.median], [line], "o", color=colour, markersize=5)
            if row.at_least is not None:
                axes.plot([row.at_least], [line], "|", color=INK, markersize=9)
        axes.set_yticks(range(len(shown)), [row.work for row, _ in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel("times better than the peer (dot: median, line: spread, stroke: goal)")
        axes.xaxis.set_major_formatter(FuncFormatter(_times))
        return svg(picture)


def growth(curve: Curve) -> str:
    """Return an SVG with both brokers' costs over what they grow with. Both axes are logarithmic."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN / 2, 2.9), layout="constrained")
        axes = picture.subplots()
        for series, colour in zip(curve.series, COLOURS, strict=False):
            places = [at for at, _ in series.points]
            figures = [figure for _, figure in series.points]
            medians = [figure.median for figure in figures]
            axes.errorbar(
                places,
                medians,
                yerr=_spread(figures),
                color=colour,
                marker="o",
                markersize=4,
                capsize=2,
                linewidth=1.4,
                label=series.name,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_plain))
        axes.set_title(curve.title, fontsize=10, loc="left")
        axes.set_xlabel(curve.grows_with)
        axes.set_ylabel(f"{curve.cost}, {curve.series[0].points[0][1].unit}")
        axes.legend(frameon=False)
        return svg(picture)


def _spread(figures: Sequence[Figure]) -> list[list[float]]:
    """Return how far the values reach below and above the median."""
    return [
        [figure.median - min(figure.values) for figure in figures],
        [max(figure.values) - figure.median for figure in figures],
    ]


def _times(value: float, _: int) -> str:
    return f"{value:g} x"


def _plain(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


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
    """Write ``stored`` with ``.html`` for its ending, and returns that path."""
    path = stored.with_suffix(".html")
    picture = ratios(results.rows)
    curves = "".join(growth(curve) for curve in results.curves)
    page = _PAGE.format(
        title=escape(stored.stem),
        where=escape(where_measured()),
        missing=_missing(results.missing),
        table=_table(results.rows, results.peer),
        ratios=f"<h2>Beside the peer</h2>\n{picture}" if picture else "",
        curves=f'<h2>How costs grow</h2>\n<div class="curves">{curves}</div>' if curves else "",
        settings=escape(", ".join(f"{key}={value}" for key, value in sorted(results.settings.items())) or "none"),
    )
    path.write_text(page)
    return path


def _table(rows: Sequence[ResultRow], peer: str | None) -> str:
    heads = ("work", "reference", peer or "", "ratio" if peer else "", "goal")
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for row, cells in zip(rows, table(rows), strict=True):
        mark = ' class="missed"' if row.reached is False else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _missing(missing: Mapping[str, str]) -> str:
    return "".join(f"<p><b>{escape(row)} could not be measured:</b> {escape(why)}</p>" for row, why in missing.items())
