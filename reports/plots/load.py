"""Draws what the schedule offered, what the fleet sent and what completed. Below is how late the fleet was."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reports.plots import style, timeline

_LINES = (("offered", style.INK, (0, (2, 2))), ("sent", style.BLUE, "-"), ("completed", style.GREEN, "-"))


def draw(load: Sequence[dict[str, Any]], hits: Sequence[dict[str, Any]], seconds: int) -> Figure | None:
    if len(load) < timeline.LEAST_SECONDS:
        return None
    figure, panels = timeline.frame([1.8, 1.0], hits, seconds)
    scheduled = [row for row in load if row["offered"]]  # operations after the schedule's end are not load
    lasted = max((row["second"] + 1 for row in scheduled), default=seconds)
    for name, colour, line in _LINES:
        points = {row["second"]: row[name] for row in load}
        panels[0].plot(*timeline.dense(points, seconds, 0, lasted), color=colour, linestyle=line, label=name)
    panels[0].set_ylim(bottom=0)
    panels[0].set_title("operations per second")
    style.legend(panels[0], 3)
    slip = {row["second"]: (row["max_slip_us"] or 0) / 1_000 for row in load}
    x, y = timeline.dense(slip, seconds, 0, lasted)
    panels[1].fill_between(x, y, color=style.MUTED, alpha=0.5, linewidth=0)
    panels[1].set_ylim(bottom=0)
    panels[1].set_title("schedule slip: worst delay from the intended to the real send, ms")
    return figure
