"""Draws operations by the second in which they completed. Below are those that did not end ok, stacked by error."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.plots import style, timeline

MOST_ABOVE = 5
_ERRORS = (style.RED, style.YELLOW, style.PURPLE, style.SKY, style.MUTED)


def draw(throughput: Sequence[dict[str, Any]], hits: Sequence[dict[str, Any]], seconds: int) -> Figure | None:
    ok = _by_second([row for row in throughput if row["type"] == "ok"], "f")
    bad = _by_second([row for row in throughput if row["type"] != "ok"], "error")
    if len({second for series in ok.values() for second in series}) < timeline.LEAST_SECONDS:
        return None
    figure, panels = timeline.frame([2.0, 1.1] if bad else [2.2], hits, seconds)
    names = sorted(ok, key=lambda name: -sum(ok[name].values()))
    x, stacks = timeline.stacked([ok[name] for name in names], seconds)
    panels[0].stackplot(
        x, *stacks, labels=names, colors=[style.color_of(name) for name in names], alpha=0.8, linewidth=0
    )
    panels[0].set_title("completed ok, operations per second")
    _legend(panels[0], len(names))
    if bad:
        errors = sorted(bad, key=lambda name: -sum(bad[name].values()))
        colours = [_ERRORS[min(place, len(_ERRORS) - 1)] for place in range(len(errors))]
        series = [bad[name] for name in errors]
        timeline.bars(panels[1], series, colours, [name or "unknown" for name in errors], seconds)
        panels[1].set_title("failed or unknown, operations per second")
        _legend(panels[1], len(bad))
    return figure


def _legend(axes: Axes, entries: int) -> None:
    """Puts the legend beside the title or, if it has too many entries, beside the data."""
    if entries <= MOST_ABOVE:
        style.legend(axes, 5)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), ncols=1, fontsize=7.5, labelspacing=0.25)


def _by_second(rows: Sequence[dict[str, Any]], key: str) -> dict[str, Counter[int]]:
    series: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        series[row[key]][row["second"]] += row["operations"]
    return series
