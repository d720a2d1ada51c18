"""Figures of consumer groups."""

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.job_rows import Rows
from reports.plots import style, timeline

MAX_GROUPS = 8
COMMITS = ("offset_commit", "commit")
"""The operations that commit offsets."""


def draw_groups(
    rebalances: Rows,
    ownerless: Rows,
    latency: Rows,
    hits: Rows,
    seconds: int,
) -> Figure | None:
    """Rebalances of groups over time, partitions without an owner, and how long commits took.

    None without groups.
    """
    names = sorted({row["group"] for row in rebalances})[:MAX_GROUPS]
    if not names or seconds < timeline.MIN_SECONDS:
        return None
    commits = [row for row in latency if row["operation"] in COMMITS and row["measure"] == "response"]
    heights = [0.36 * len(names) + 0.25, 1.0, *([1.2] if commits else [])]
    figure, panels = timeline.frame(heights, hits, seconds)
    _generations(panels[0], rebalances, names, seconds)
    _without_owner(panels[1], ownerless, seconds)
    if commits:
        _commits(panels[2], commits, seconds)
    return figure


def _generations(axes: Axes, rebalances: Rows, names: Sequence[str], seconds: int) -> None:
    for place, name in enumerate(names):
        rows = sorted((row for row in rebalances if row["group"] == name), key=lambda row: row["generation"])
        ends = [row["from_us"] / 1e6 for row in rows[1:]] + [float(seconds)]
        free, many, bar = 0.0, len(rows) > timeline.MAX_SPANS, (place - 0.3, 0.6)
        lasted: list[tuple[float, float]] = []
        joining: list[tuple[float, float]] = []
        for row, end in zip(rows, ends, strict=True):
            start, done = row["from_us"] / 1e6, row["until_us"] / 1e6
            lasted.append((done, max(0.0, end - done)))
            joining.append((start, max(done - start, seconds * 0.002)))
            if end - done > seconds * 0.035 and done >= free:
                text = _members(row["members"], end - done > seconds * 0.12)
                axes.text(done + seconds * 0.004, place, text, va="center", fontsize=8.5, color=style.INK)
                free = done + seconds * 0.02
        axes.broken_barh(lasted, bar, color=style.BLUE, alpha=0.25, linewidth=0, rasterized=many)
        axes.broken_barh(joining, bar, color=style.ORANGE, linewidth=0, rasterized=many)
    style.rows(axes, names, 0.45)
    axes.set_title("members of each generation (orange: rebalancing)")
    style.no_lines(axes)


def _members(count: int, wide: bool) -> str:
    return f"{count} member{'s' * (count != 1)}" if wide else str(count)


def _without_owner(axes: Axes, ownerless: Rows, seconds: int) -> None:
    """Return the number of partitions without an owner in all groups, counted only between two owners."""
    begun = [(row["from_us"] / 1e6, 1) for row in ownerless]
    ended = [(row["until_us"] / 1e6, -1) for row in ownerless]
    moves = sorted(begun + ended)
    x = [0.0, *(at for at, _ in moves), float(seconds)]
    y = [0, *accumulate(step for _, step in moves)]
    y.append(y[-1])
    shown = timeline.steps(x, y, seconds)
    axes.step(*shown, where="post", color=style.RED)
    axes.fill_between(*shown, step="post", color=style.RED, alpha=0.18, linewidth=0)
    axes.set_ylim(0, max(1, *y) * 1.08)
    axes.set_title("partitions without an owner")


def _commits(axes: Axes, rows: Rows, seconds: int) -> None:
    for name, label, colour in (("p50_us", "median", style.SKY), ("max_us", "slowest", style.BLUE)):
        points = {row["second"]: max(1, row[name]) for row in rows if row[name] is not None}
        x, y = timeline.dense(points, seconds)
        axes.plot(x, y, color=colour, marker=timeline.marker(seconds), markersize=2.5, label=label)
    style.micros_axis(axes)
    axes.set_title("commits: response time by second")
    style.legend(axes, 2)
