"""Draws the comparison of the two revisions of fetch sessions: medians over the seeds, with a line from the least to
the greatest value."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from chaos.search.revisions_compared import COSTS, Found, Seen, Trouble, Value, on_the_wire

COLOURS: Final = ("#1f6feb", "#8a63d2", "#d9730d", "#8c8c8c", "#b58900", "#0b3d91")
"""By the order in which variants come first."""
STEP: Final = 0.13
STYLE: Final[Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "grid.color": "#d9d9d9",
    "legend.frameon": False,
}
"""Matplotlib's settings, whose names its type hints enumerate."""


def draw(found: Found, path: Path) -> None:
    """Writes a PNG with two panels: the bytes of a fetch, and full fetches again."""
    troubles = list(dict.fromkeys(trouble for trouble, _ in found))
    with rc_context(STYLE):
        picture = Figure(figsize=(10.4, 0.9 + 0.95 * len(troubles)), layout="constrained")
        left, right = picture.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.set_title("bytes of one fetch without records (hollow: in one layout)")
        _points(left, found, troubles, COSTS["both in one layout, B"], hollow=True)
        _points(left, found, troubles, on_the_wire)
        left.set_xscale("log")
        left.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        left.xaxis.set_major_formatter(FuncFormatter(_plain))
        left.xaxis.set_minor_formatter(NullFormatter())
        right.set_title("full fetches again, in one run")
        _points(right, found, troubles, COSTS["full fetches again"])
        right.set_xscale("symlog", linthresh=10)
        right.set_xlim(left=-1)
        right.xaxis.set_major_formatter(FuncFormatter(_plain))
        left.set_yticks(range(len(troubles)), [each.name.replace(", ", ",\n") for each in troubles])
        left.set_ylim(len(troubles) - 0.5, -0.5)
        handles, names = right.get_legend_handles_labels()
        picture.legend(handles, names, loc="outside upper center", ncols=len(names))
        picture.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})


def _points(axes: Axes, found: Found, troubles: Sequence[Trouble], value: Value, hollow: bool = False) -> None:
    names = list(dict.fromkeys(variant.name for _, variant in found))
    labelled = set[str]()
    for (trouble, variant), seen in found.items():
        here = [other for at, other in found if at == trouble]
        y = troubles.index(trouble) + (here.index(variant) - (len(here) - 1) / 2) * STEP
        low, middle, high = _spread(seen, value)
        colour = COLOURS[names.index(variant.name)]
        axes.errorbar(
            middle,
            y,
            xerr=[[middle - low], [high - middle]],
            fmt="o",
            markersize=5,
            color=colour,
            markerfacecolor="white" if hollow else colour,
            label=None if variant.name in labelled else variant.name,
        )
        labelled.add(variant.name)
        if not hollow:
            axes.annotate(_plain(middle), (high, y), (9, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.grid(True, axis="x")
    axes.margins(x=0.12)


def _spread(seen: Sequence[Seen], value: Callable[[Seen], float]) -> tuple[float, float, float]:
    values = [value(each) for each in seen]
    return min(values), median(values), max(values)


def _plain(value: float, _: object = None) -> str:
    return f"{value:,.0f}"
