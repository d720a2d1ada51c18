"""The broker's own metrics over time."""

from collections import defaultdict

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reports.job_rows import Rows
from reports.plots import style, timeline

MAX_PANELS = 8
_FIRST = (
    "process_cpu_permille",
    "process_rss_bytes",
    "NumIncrementalFetchSessions",
    "NumIncrementalFetchPartitionsCached",
    "IncrementalFetchSessionEvictions",
)


def draw_broker(broker: Rows, hits: Rows, seconds: int) -> Figure | None:
    """The broker's own metrics, one small panel each, on the same time axis as everything else."""
    metrics = shown_metrics(broker)
    if not metrics:
        return None
    figure, panels = timeline.frame([0.75] * len(metrics), hits, seconds)
    nodes = sorted({row["node"] for row in broker})
    points: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for row in broker:
        points[row["metric"], row["node"]][row["second"]] = row["value"]
    for metric, axes in zip(metrics, panels, strict=True):
        for place, node in enumerate(nodes):
            axes.plot(*timeline.dense(points[metric, node], seconds), color=style.series(place), label=f"node {node}")
        axes.set_title(metric, fontweight="normal")
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if len(nodes) > 1:
        style.legend(panels[0], len(nodes))
    return figure


def shown_metrics(broker: Rows) -> list[str]:
    """Known metrics come first, then those that moved. A line that stays at 0 shows nothing."""
    values: dict[str, list[int]] = defaultdict(list)
    for row in broker:
        values[row["metric"]].append(row["value"])
    enough = [name for name in sorted(values) if len(values[name]) >= timeline.MIN_SECONDS and any(values[name])]
    known = [name for name in _FIRST if name in enough]
    moving = [name for name in enough if name not in known and len(set(values[name])) > 1]
    return [*known, *moving][:MAX_PANELS]


def short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g} {unit}"
    return f"{value:.4g}"
