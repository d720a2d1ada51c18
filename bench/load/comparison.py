"""Comparison of targets: repeated runs as series, medians with confidence intervals, and ratios between targets.

Runs are the units of the bootstrap (``reports/statistics``), because operations of one run are not independent. An
INVALID run says nothing of the brokers, so it is omitted. The first target of a workload and rate is the base of the
others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.load.clients import NATIVE
from bench.load.results import UNVERIFIED, LoadResult
from bench.load.search import PRECISION, Sustained
from reports.statistics.confidence import BUCKET, MIN_UNITS, Interval, Ratio, median_interval, ratios

INVALID: Final = "INVALID"
MAX_LEAST_RATIO: Final = 2.0
"""A comparison that could not have shown a doubling is too noisy: its interval, which may span orders of magnitude with
three runs, says less than the range of the runs."""
TOO_NOISY: Final = "too noisy to compare"
NO_DIFFERENCE: Final = "no difference shown"


@dataclass(frozen=True, slots=True)
class Entry:
    """One target's run of a workload."""

    result: LoadResult
    search: Sustained | None = None  # the search for the maximum sustainable rate; None: there was none


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one target with the same workload and rate, in the order in which they were played."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def target(self) -> str:
        return self.entries[0].result.target

    @property
    def valid(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.result.outcome != INVALID]

    @property
    def outcome(self) -> str:
        """The worst of the runs: FAILED, then INVALID, unless most of the runs are valid."""
        outcomes = [entry.result.outcome for entry in self.entries]
        if "FAILED" in outcomes:
            return "FAILED"
        if len(self.valid) * 2 <= len(outcomes):
            return INVALID
        return UNVERIFIED if UNVERIFIED in outcomes else "PASSED"


Key = tuple[str, str, str, float]


def _key(entry: Entry) -> Key:
    """Return target, client, workload and rate. Searches have no rate in common, and need none."""
    result = entry.result
    rate = -1.0 if entry.search else result.wanted_records_per_s
    return result.target, result.client, result.workload.name, rate


def series_of(entries: Sequence[Entry]) -> list[Series]:
    """Return the series in the order of their first runs. Names contain the target, and what else differs."""
    every: list[Series] = []
    for curve in curves_of(entries):
        keys = list(dict.fromkeys(map(_key, curve.entries)))
        for key in keys:
            *_, rate = key
            rated = "--max" if rate < 0 else f"{rate:,.0f}/s" if rate else "no limit"
            name = curve.name if len(keys) == 1 else f"{curve.name}, {rated}"
            every.append(Series(name, tuple(entry for entry in curve.entries if _key(entry) == key)))
    firsts = list(dict.fromkeys(map(_key, entries)))
    return sorted(every, key=lambda series: firsts.index(_key(series.entries[0])))


def curves_of(entries: Sequence[Entry]) -> list[Series]:
    """Return the runs of each target, client and workload, whatever their rates."""
    keys = list(dict.fromkeys(_key(entry)[:3] for entry in entries))
    has_clients = {client for _, client, _ in keys} != {NATIVE}
    several_workloads = len({workload for *_, workload in keys}) > 1
    curves = []
    for key in keys:
        target, client, workload = key
        parts = [target, *([client] if has_clients else []), *([workload] if several_workloads else [])]
        curves.append(Series(", ".join(parts), tuple(entry for entry in entries if _key(entry)[:3] == key)))
    return curves


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run."""

    name: str
    unit: str
    less_is_better: bool
    value: Callable[[Entry], float | None]  # returns None if it was not measured, or from too few samples
    exact_to: float = 0.0  # as a share
    exact_to_unit: float = 0.0  # in the figure's unit
    decimals: int = 0
    percentile: tuple[str, float] | None = None  # the measure and the share, if it is one

    def text(self, value: float) -> str:
        return f"{value:,.{self.decimals}f}"


def _rate(name: str) -> Callable[[Entry], float | None]:
    return lambda entry: entry.result.rate(name)


def _acknowledged(entry: Entry) -> float | None:
    return entry.result.rate("acknowledged") if entry.result.acks else None


def _aborted_rate(entry: Entry) -> float | None:
    return entry.result.rate("aborted") if entry.result.workload.crucible.transactions else None


def _transactions(entry: Entry) -> float | None:
    own = entry.result.workload.crucible
    return entry.result.rate("transactions") if own.transactions or own.transform else None


def _backlog(name: str) -> Callable[[Entry], float | None]:
    def value(entry: Entry) -> float | None:
        return None if entry.result.backlog is None else float(getattr(entry.result.backlog, name))

    return value


def _catch_up_s(entry: Entry) -> float | None:
    return entry.result.catch_up.seconds if entry.result.catch_up is not None else None


def _catch_up_rate(entry: Entry) -> float | None:
    own = entry.result.catch_up
    return own.records / own.seconds if own is not None and own.seconds else None


def _percentile(measure: str, share: float) -> Callable[[Entry], float | None]:
    return lambda entry: entry.result.percentile_ms(measure, share)


def _cpu_s(entry: Entry) -> float | None:
    """Return the brokers' processor time for a million acknowledged records, or None."""
    result = entry.result
    records = result.written_rate * (result.end - result.first)
    return result.brokers_cpu_s / records * 1e6 if result.brokers_cpu_s >= 0 and records else None


def _memory_mib(entry: Entry) -> float | None:
    rss_bytes = entry.result.brokers_rss_bytes
    return rss_bytes / 2**20 if rss_bytes >= 0 else None


def _latency(name: str, measure: str, share: float, decimals: int = 1, exact_to_ms: float = 0.0) -> Figure:
    value = _percentile(measure, share)
    return Figure(name, "ms", True, value, BUCKET, exact_to_ms, decimals, (measure, share))


REPORT_S: Final = 0.5
"""Interval between reports of workers, which limits the accuracy of a backlog's times."""
SUSTAINED: Final = Figure(
    "maximum sustained", "records/s", False, lambda entry: entry.search.rate if entry.search else None, PRECISION
)
FIGURES: Final = (
    SUSTAINED,
    Figure("offered", "records/s", False, lambda entry: entry.result.offered_rate),
    Figure("sent", "records/s", False, _rate("sent")),
    Figure("acknowledged", "records/s", False, _acknowledged),
    Figure("read", "records/s", False, _rate("read")),
    _latency("publish latency p50", "publish", 0.5),
    _latency("publish latency p99", "publish", 0.99),
    _latency("publish latency p99.9", "publish", 0.999),
    _latency("publish latency p99.99", "publish", 0.9999),
    _latency("delay p50", "delay", 0.5, 2),
    _latency("delay p99", "delay", 0.99, 2),
    _latency("delay p99.9", "delay", 0.999, 2),
    _latency("delay p99.99", "delay", 0.9999, 2),
    _latency("response latency p99", "response", 0.99),
    _latency("end-to-end p50", "end_to_end", 0.5, exact_to_ms=1.0),
    _latency("end-to-end p99", "end_to_end", 0.99, exact_to_ms=1.0),
    _latency("end-to-end p99.9", "end_to_end", 0.999, exact_to_ms=1.0),
    _latency("end-to-end p99.99", "end_to_end", 0.9999, exact_to_ms=1.0),
    Figure("backlog: records", "of all subscriptions", False, _backlog("records")),
    Figure("backlog: building", "s", True, _backlog("build_s"), exact_to_unit=REPORT_S, decimals=1),
    Figure("backlog: draining", "s", True, _backlog("drain_s"), exact_to_unit=REPORT_S, decimals=1),
    Figure("backlog: read while draining", "records/s", False, _backlog("drained_per_s")),
    Figure(
        "rebalances of groups",
        "assignments of members during the load",
        True,
        lambda entry: float(entry.result.rebalances) if entry.result.workload.crucible.groups else None,
    ),
    Figure(
        "new connections",
        "in a second",
        False,
        lambda entry: entry.result.rate("connections") if entry.result.workload.crucible.connection_storm else None,
    ),
    _latency("new connection p50", "connect", 0.5),
    _latency("new connection p99", "connect", 0.99),
    Figure(
        "catching up",
        "s",
        True,
        lambda entry: entry.result.catch_up.seconds if entry.result.catch_up else None,
        decimals=1,
    ),
    Figure("read while catching up", "records/s", False, _catch_up_rate),
    Figure("transactions committed", "in a second", False, _transactions, decimals=1),
    Figure("aborted by the plan", "records/s", False, _aborted_rate),
    _latency("EndTxn p50", "commit", 0.5),
    _latency("EndTxn p99", "commit", 0.99),
    Figure("brokers: processor time", "s for a million records", True, _cpu_s, decimals=2),
    Figure("brokers: memory", "MiB", True, _memory_mib),
)
_GENERATOR_S: Final = ("offered", "sent", "aborted by the plan", "backlog: records", "backlog: building")
COMPARED: Final = tuple(
    figure
    for figure in FIGURES
    if figure.name not in _GENERATOR_S and (figure.percentile is None or figure.percentile[0] != "delay")
)
"""Figures of the brokers. The others are the generator's: what it offers, sends and aborts, and how late."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One figure of one series."""

    figure: Figure
    interval: Interval | None  # None: not measured
    values: tuple[float, ...] = ()  # of the runs
    base_values: tuple[float, ...] = ()
    ratio: Ratio | None = None  # to the base; None for the base, or if it cannot be shown
    is_at_least: bool = False  # a search ended before a rate that is not sustained was found
    beyond: float | None = None  # the rate that the only search found not to be sustained

    @property
    def text(self) -> str:
        if self.interval is None:
            return ""
        middle = self.figure.text(self.interval.middle)
        prefix = "at least " if self.is_at_least else ""
        if self.beyond is not None and not self.is_at_least:
            return f"{middle} ({self.figure.text(self.beyond)} is not)"
        if self.interval.is_known:
            count, ends = "", (self.interval.low, self.interval.high)
        else:
            count, ends = f"{len(self.values)} runs: ", (min(self.values), max(self.values))
        low, high = map(self.figure.text, ends)
        return f"{prefix}{middle}" + (f" ({count}{low}–{high})" if low != high else "")

    @property
    def word(self) -> str:
        """The conclusion from the ratio, empty without one."""
        if self.ratio is None:
            return ""
        word = self.ratio.word(self.figure.less_is_better)
        return TOO_NOISY if word == NO_DIFFERENCE and self.ratio.least > MAX_LEAST_RATIO else word

    @property
    def comparison(self) -> str:
        """The ratio with its interval in words. Empty without one. If the runs are too noisy for an interval, it is the
        range of the ratios of any run to any run of the base."""
        if self.ratio is None:
            return ""
        if self.word == TOO_NOISY:
            low, high = min(self.values) / max(self.base_values), max(self.values) / min(self.base_values)
            counts = f"{len(self.base_values)} and {len(self.values)} runs"
            return f"{self.ratio.ratio:.2f} × (single runs {low:.2f}–{high:.2f}; {counts}): {self.word}"
        return f"{self.ratio.ratio:.2f} × ({self.ratio.low:.2f}–{self.ratio.high:.2f}): {self.word}"


@dataclass(frozen=True, slots=True)
class Column:
    """All figures of one series."""

    series: Series
    base: str  # name of the series with which it is compared; empty for the base
    estimates: tuple[Estimate, ...]  # in the order of FIGURES


def compared(every: Sequence[Series]) -> list[Column]:
    """Return each series' figures, and its ratios to the first target with the same workload and rate."""
    bases: dict[tuple[str, float], Series] = {}
    columns = []
    for series in every:
        *_, workload, rate = _key(series.entries[0])
        base = bases.setdefault((workload, rate), series)
        columns.append(_column(series, base if base is not series else None))
    return columns


def _column(series: Series, base: Series | None) -> Column:
    figure_ratios = {} if base is None else _ratios(base, series)
    estimates = []
    for figure in FIGURES:
        values = values_of(series, figure)
        base_values = values_of(base, figure) if base is not None else []
        interval = median_interval(values) if values else None
        at_least = figure is SUSTAINED and any(_is_open(entry) for entry in series.valid)
        beyond = _beyond(series) if figure is SUSTAINED else None
        ratio = figure_ratios.get(figure.name)
        estimates.append(Estimate(figure, interval, tuple(values), tuple(base_values), ratio, at_least, beyond))
    return Column(series, "" if base is None else base.name, tuple(estimates))


def values_of(series: Series, figure: Figure) -> list[float]:
    """Return the valid runs' values, or nothing if a run lacks one. Without a valid run they are those of all runs,
    which are shown, but not compared."""
    values = [figure.value(entry) for entry in series.valid or series.entries]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _is_open(entry: Entry) -> bool:
    search = entry.search
    return search is not None and (search.beyond is None or search.generator_was_the_limit)


def _beyond(series: Series) -> float | None:
    searches = [entry.search for entry in series.valid if entry.search is not None]
    return searches[0].beyond if len(searches) == 1 else None


def _ratios(base: Series, other: Series) -> dict[str, Ratio]:
    """Return the ratios of all figures that both sides have in enough runs. All are drawn together."""
    if min(len(base.valid), len(other.valid)) < MIN_UNITS:
        return {}
    figures, sides, exact_to = [], ([], []), []  # type: ignore[var-annotated]
    for figure in COMPARED:
        if figure is SUSTAINED and any(_is_open(entry) for side in (base, other) for entry in side.valid):
            continue
        own = [values_of(side, figure) for side in (base, other)]
        if not all(values and min(values) > 0 for values in own):
            continue
        figures.append(figure)
        exact_to.append(figure.exact_to + figure.exact_to_unit / min(map(min, own)))
        for side, values in zip(sides, own, strict=True):
            side.append(values)
    if not figures:
        return {}
    old, new = (list(zip(*side, strict=True)) for side in sides)
    return {figure.name: ratio for figure, ratio in zip(figures, ratios(old, new, exact_to), strict=True)}


def sentences(columns: Sequence[Column]) -> Iterator[str]:
    """Yield a sentence for each comparison: what is better, worse, not shown to differ, and too noisy."""
    for column in columns:
        if not column.base:
            continue
        shown = [estimate for estimate in column.estimates if estimate.ratio is not None]
        if not shown:
            yield (
                f"{column.series.name} beside {column.base}: no comparison, which needs {MIN_UNITS} valid runs of "
                f"each (--repeat 5)."
            )
            continue
        names: dict[str, list[str]] = {}
        for word, name in sorted((estimate.word, estimate.figure.name) for estimate in shown):
            names.setdefault(word, []).append(name)
        if list(names) == [NO_DIFFERENCE]:
            yield f"{column.series.name} beside {column.base}: {NO_DIFFERENCE}."
            continue
        words = ("better", "worse", NO_DIFFERENCE, TOO_NOISY)
        parts = [f"{word}: {', '.join(names[word])}" for word in words if word in names]
        yield f"{column.series.name} beside {column.base}: {'; '.join(parts)}."
