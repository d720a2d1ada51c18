"""Matplotlib figures as SVG for benchmark pages: matplotlib's settings, and SVG to put into HTML."""

from io import StringIO
from typing import Any

from matplotlib.figure import Figure as Picture

GRID = "#d9d9d9"
INK = "#222222"
WIDTH_IN = 9.0
STYLE: Any = {
    "font.size": 9.0,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "svg.hashsalt": "crucible",  # The same results give the same file.
}
"""Matplotlib's settings, whose names its type hints enumerate."""


def svg(picture: Picture) -> str:
    """Return the ``<svg>`` element of a picture. The same picture always gives the same text."""
    text = StringIO()
    picture.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
