"""Response time second by second, log scale: p50, p99 and max, faults shaded."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reports.plots import style, timeline

_LINES = (
    ("p50_us", "p50", "-", 1.6, 1.0),
    ("p99_us", "p99", (0, (4, 1.5)), 1.4, 0.95),
    ("max_us", "max", ":", 1.1, 0.8),
)
_SHOWN = ("fetch", "produce")
_WITHOUT_RECORDS = ("create_topics", "metadata_read")
"""These operations are shown if no client wrote or read records."""


def draw(latency: Sequence[dict[str, Any]], hits: Sequence[dict[str, Any]], seconds: int) -> Figure | None:
    rows = [row for row in latency if row["measure"] == "response"]
    counts = {kind: sum(row["operation"] == kind for row in rows) for kind in (*_SHOWN, *_WITHOUT_RECORDS)}
    shown = _SHOWN if any(counts[kind] for kind in _SHOWN) else _WITHOUT_RECORDS
    kinds = [kind for kind in shown if counts[kind] >= timeline.LEAST_SECONDS]
    if not kinds:
        return None
    figure, panels = timeline.frame([2.1] * len(kinds), hits, seconds)
    for kind, axes in zip(kinds, panels, strict=True):
        for column, label, line, width, alpha in _LINES:
            points = {row["second"]: max(1, row[column]) for row in rows if row["operation"] == kind}
            axes.plot(
                *timeline.dense(points, seconds),
                color=style.color_of(kind),
                linestyle=line,
                linewidth=width,
                alpha=alpha,
                label=label,
            )
        axes.set_title(f"{kind}: response time, from the intended send")
        style.micros_axis(axes)
        style.legend(axes, 3)
    return figure
