"""The pictures of two sets of runs: intervals of the ratios, and the curves of percentiles over each other."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports.plots import style
from reports.plots.percentiles import curve, percentile_axis

if TYPE_CHECKING:
    from reports.run_sets import FigureCompared, RunCompared

_SIDES = (("first set", style.BLUE), ("second set", style.ORANGE))
_WORDS = {"better": style.GREEN, "worse": style.RED, "no difference shown": style.MUTED}
_FURTHEST = 10.0
"""An interval that reaches beyond this ratio is cut there."""


def intervals(figures: "Sequence[FigureCompared]", names: Sequence[str]) -> Figure | None:
    """A line for each figure. ``names`` are what the lines are called."""
    if not figures:
        return None
    figure, (axes,) = style.canvas([0.27 * len(figures) + 0.35])
    for place, one in enumerate(figures):
        colour, ratio = _WORDS[one.word], one.ratio
        low, high = max(ratio.low, 1 / _FURTHEST), min(ratio.high, _FURTHEST)
        axes.plot([low, high], [place, place], color=colour, linewidth=2.4, alpha=0.55, solid_capstyle="butt")
        axes.plot([ratio.ratio], [place], "o", color=colour, markersize=5)
    axes.axvline(1.0, color=style.INK, linewidth=1)
    axes.set_xscale("log")
    narrow = all(isfinite(one.ratio.high) and one.ratio.high < 2 and one.ratio.low > 0.5 for one in figures)
    axes.xaxis.set_major_locator(MaxNLocator(8) if narrow else LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"× {value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    style.rows(axes, names, 0.4)
    axes.set_xlabel("second set / first set")
    axes.grid(False, axis="y")
    return figure


def percentiles(old: "Sequence[RunCompared]", new: "Sequence[RunCompared]") -> Figure | None:
    """A strip for each operation: each run as a thin line, and each side's runs together as a thick one."""
    operations = sorted({name for one in (*old, *new) for name in one.curves if curve(one.curves[name])[0]})
    if not operations:
        return None
    figure, strips = style.canvas([2.6] * len(operations))
    furthest = max(_strip(axes, name, old, new) for axes, name in zip(strips, operations, strict=True))
    percentile_axis(strips[-1], furthest)
    style.legend(strips[0], 2)
    return figure


def _strip(axes: Axes, operation: str, old: "Sequence[RunCompared]", new: "Sequence[RunCompared]") -> float:
    furthest = 0.0
    for (label, colour), runs in zip(_SIDES, (old, new), strict=True):
        points = [one.curves.get(operation, ()) for one in runs]
        if len(runs) > 1:
            for each in points:
                axes.plot(*curve(each), color=colour, linewidth=0.8, alpha=0.45)
        together = Counter[int]()
        for each in points:
            together.update(dict(each))
        x, y = curve(sorted(together.items()))
        axes.plot(x, y, color=colour, linewidth=2, label=label)
        furthest = max(furthest, *x, 0.0)
    style.micros_axis(axes)
    axes.set_title(f"{operation}, response time in quiet seconds")
    return furthest
