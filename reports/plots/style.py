"""The style of all figures. Each entity has one colour in all figures, and the colours suit colour-blind readers.

Figures are drawn in the light theme's colours. In the inline SVG each colour becomes a CSS variable of the page, so the
same picture follows the reader's theme, light or dark. PNG copies stay light.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK, MUTED, GRID, PAPER = "#1b2431", "#5d6879", "#e1e6ec", "#fefefe"
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, RED = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#aa4499",
    "#56b4e9",
    "#e69f00",
    "#b3261e",
)
FAULT = "#8c6d1f"

_SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)

OPERATIONS = {
    "fetch": BLUE,
    "produce": ORANGE,
    "final_read": GREEN,
    "connect": PURPLE,
    "metadata": SKY,
    "list_offsets": YELLOW,
    "create_topics": PURPLE,
    "delete_topics": RED,
    "alter_configs": YELLOW,
    "metadata_read": SKY,
    "offset_commit": GREEN,
    "offset_fetch": YELLOW,
    "join_group": PURPLE,
    "sync_group": PURPLE,
    "heartbeat": SKY,
    "copy": RED,
}
_OTHERS = (PURPLE, SKY, YELLOW, GREEN)
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PURPLE: "purple",
    SKY: "sky",
    YELLOW: "yellow",
    RED: "red",
    FAULT: "fault",
}

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "crucible",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}

WIDTH_IN = 10.4


def color_of(operation: str) -> str:
    colour = OPERATIONS.get(operation)
    return colour or _OTHERS[sum(operation.encode()) % len(_OTHERS)]


def series(number: int) -> str:
    """The colour of one of several things that have no colour of their own, for example nodes."""
    return _SERIES[number % len(_SERIES)]


def canvas(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Stack one axes for each height (inches), with one x axis. Use it inside ``with styled():``."""
    figure = blank(sum(heights) + 0.34 * len(heights) + 0.25)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=list(heights))[:, 0]
    return figure, list(axes)


def blank(height_in: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def styled() -> Any:
    return mpl.rc_context(_SETTINGS)


def micros_axis(axes: Axes) -> None:
    """Make the axis logarithmic, with the unit that reads best. A narrow range gets labels at 2 and 5, too."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = (1.0,) if high > low * 3_000 else (1.0, 3.0) if high > low * 300 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: micros(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def micros(value_us: float) -> str:
    """Three significant digits at most: 870 µs, 1.24 ms, 12.4 ms, 3 s."""
    for unit_us, unit in ((1, "µs"), (1_000, "ms")):
        if value_us < 999.5 * unit_us:
            return f"{value_us / unit_us:.3g} {unit}"
    seconds = value_us / 1_000_000
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"


def rows(axes: Axes, labels: Sequence[str], below: float = 0.5) -> None:
    """Make the axis a list of labelled rows, the first on top. ``below`` is the space under the last one, in rows."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - below, below - 1)


def legend(axes: Axes, columns: int, handles: Sequence[Artist] | None = None) -> None:
    """Put the legend above the axes, on the right."""
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=columns, borderaxespad=0.1)


def no_lines(axes: Axes) -> None:
    axes.grid(False)
    axes.spines["left"].set_visible(False)


def svg(figure: Figure, name: str, description: str) -> str:
    """The figure as inline SVG, with CSS variables for colours, the page's font, and a text for screen readers."""
    buffer = io.StringIO()
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": f"crucible-{name}"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    head = rf'<svg viewBox="\1" role="img" aria-label="{_attribute(description)}">'
    text = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', head, text, count=1)
    text = re.sub(r"font: ?((?:bold |\d+ )?[\d.]+px) [^;\"]*", r"font: \1 var(--sans)", text)
    text = re.sub(r"font-family: ?[^;\"]*;?", "", text)
    text = _own_ids(text, name)
    text = re.sub(r' (?:d|x|y)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", text)


def _own_ids(text: str, name: str) -> str:
    """Keep only the IDs that are referred to, and make them unique, because a page holds several figures."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    return re.sub(r'(url\(#|href="#)', rf"\1{name}-", text)


def png(figure: Figure, path: Path) -> None:
    """Return the figure as PNG. This settles the layout, too, so that the figure need not be laid out again for its
    SVG."""
    with mpl.rc_context(_SETTINGS):
        figure.savefig(path, format="png", dpi=110, facecolor="white")
    figure.set_layout_engine("none")


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
