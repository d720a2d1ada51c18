"""The figure of a benchmark row: its ratios to a peer, night by night."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from reports.plots import style


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a series in which the ratio stayed around one value."""

    start: int
    """The first place in the series."""
    end: int
    """One past the last place."""
    ratio: float


@dataclass(frozen=True, slots=True)
class Series:
    """Ratios say how many times better the reference was than the peer. Lists are in the order of the nights."""

    row: str
    what: str
    nodes: int
    peer: str
    nights: tuple[str, ...]
    ratios: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    levels: tuple[Level, ...]

    @property
    def title(self) -> str:
        nodes = f", {self.nodes} nodes" if self.nodes > 1 else ", one node" if self.nodes else ""
        return f"{self.what}{nodes}"


_HEIGHT_IN = 1.15
_NEAR = 1.7
"""If no ratio is so near to 1, the line at 1 is omitted. It would press the series flat."""


def draw_ratios(every: Sequence[Series], notes: "Sequence[date]" = ()) -> Figure:
    """Draw series of ratios to a peer, night by night, with the levels between their changes.

    One strip for each series, with one axis of days. ``notes`` are the days that lines with numbers mark.
    """
    figure, strips = style.canvas([_HEIGHT_IN] * len(every))
    for axes, series in zip(strips, every, strict=True):
        _strip(axes, series)
        _mark(axes, notes)
    strips[-1].xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    strips[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: _day(value)))
    return figure


def _days(moment: datetime) -> float:
    """Days since the epoch. So whole numbers are midnights, in UTC."""
    return moment.replace(tzinfo=UTC).timestamp() / 86_400


def _day(days: float) -> str:
    return f"{datetime.fromtimestamp(days * 86_400, UTC):%-d %b}"


def _strip(axes: Axes, series: Series) -> None:
    at = [_days(datetime.strptime(night, "%Y%m%d-%H%M%S")) for night in series.nights]
    axes.set_yscale("log")
    if min(series.ratios) < _NEAR and max(series.ratios) > 1 / _NEAR:
        axes.axhline(1.0, color=style.MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axes.vlines(at, series.lows, series.highs, color=style.BLUE, linewidth=1.4, alpha=0.35)
    axes.plot(at, series.ratios, "o", color=style.BLUE, markersize=3.2)
    for number, level in enumerate(series.levels):
        axes.plot([at[level.start], at[level.end - 1]], [level.ratio] * 2, color=style.INK, linewidth=1.6)
        if number:
            _changed(axes, (at[level.start - 1] + at[level.start]) / 2, level.ratio / series.levels[number - 1].ratio)
    axes.set_title(f"{series.title}: now {series.levels[-1].ratio:.2f} × {series.peer}", loc="right")
    axes.yaxis.tick_right()  # On a phone one sees the right end first, which is the newest.
    axes.margins(y=0.18)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=2))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g} ×"))


def _changed(axes: Axes, at: float, times: float) -> None:
    colour = style.GREEN if times > 1 else style.RED
    axes.axvline(at, color=colour, linewidth=1.2)
    sign = "▲" if times > 1 else "▼"
    axes.text(at, 0.97, f" {sign} × {times:.2f}", transform=axes.get_xaxis_transform(), color=colour, va="top")


def _mark(axes: Axes, notes: "Sequence[date]") -> None:
    low, high = axes.get_xlim()
    for number, day in enumerate(notes, start=1):
        at = _days(datetime(day.year, day.month, day.day))
        if low <= at <= high:
            axes.axvline(at, color=style.FAULT, linewidth=1, linestyle=(0, (4, 2)))
            axes.text(at, 0.02, f" {number}", transform=axes.get_xaxis_transform(), color=style.FAULT, va="bottom")
