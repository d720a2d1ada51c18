"""The page of a load benchmark: one HTML file with the verdicts, figures, comparisons and pictures of all its runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from jinja2 import Environment
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import LogLocator, StrMethodFormatter

from bench.drawing import INK, STYLE, WIDTH_IN, svg
from bench.load.comparison import (
    FIGURES,
    MAX_LEAST_RATIO,
    Column,
    Entry,
    Estimate,
    Figure,
    Series,
    compared,
    curves_of,
    sentences,
    series_of,
)
from bench.load.ledger import Findings
from bench.load.measures import quantile_us
from bench.load.openmessaging import PERIOD_S, Published
from bench.load.results import LoadResult, has_percentile
from bench.load.search import Sustained

COLOURS: Final = ("#0b6e99", "#c4552d", "#3f7d3a", "#7a4fa3", "#8a6d1f", "#444444")
HEIGHT_IN: Final = 3.1
SHARES: Final = tuple(1 - 10 ** (-step / 10) for step in range(1, 41))
"""Shares of a percentile plot up to 99.99, evenly spread over the nines."""
LABELS: Final = {
    "publish": "Publish latency: from the time at which a batch was sent",
    "delay": "Publish delay: how late a batch was sent",
    "response": "Response latency: from the time at which a batch was due",
    "end_to_end": "End-to-end latency: from the batch's timestamp",
}
SAMPLES: Final = {
    "publish": ("publish latency, delay", "batches a run"),
    "end_to_end": ("end-to-end", "batches a run"),
    "commit": ("EndTxn", "transactions a run"),
    "connect": ("connections", "a run"),
}
NO_VALUE: Final = "–"
VIOLATIONS: Final = {
    "lost": "lost",
    "repeated": "repeated",
    "reordered": "reordered",
    "damaged": "damaged",
    "refused_but_read": "refused but read",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the comparison."""

    text: str
    comparison: str = ""  # a ratio in words
    word: str = ""  # the result of the comparison (``Estimate.word``)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table, with a cell for each series and each published result."""

    name: str
    unit: str
    cells: tuple[Cell, ...]


def lines(columns: Sequence[Column], published: Sequence[Published] = ()) -> list[Line]:
    """Return the table: what is known of at least one series."""
    found = [_figure_line(at, figure, columns, published) for at, figure in enumerate(FIGURES)]
    nothing = tuple(Cell(NO_VALUE) for _ in published)
    for measure, (name, unit) in SAMPLES.items():
        cells = tuple(Cell(_samples(column.series, measure)) for column in columns)
        records = tuple(
            Cell(f"{each.records:,} records" if each.quantiles_ms.get(measure) else NO_VALUE) for each in published
        )
        found.append(Line(f"samples: {name}", unit, cells + records))
    runs = [[entry.result for entry in column.series.entries] for column in columns]
    for name, unit, text in (
        ("generator: processor", "busiest worker", _generator_share),
        ("generator: processor time", "s for a million records", _generator_cost),
        ("generator: memory", "MiB", _generator_memory),
        ("records verified", "", _verified),
        ("records sent without an acknowledgement", "", _unacknowledged),
        ("of those: never read", "", _unread),
        ("records lost, repeated, reordered, damaged or refused but read", "", _violations),
        ("runs", "", _valid),
    ):
        found.append(Line(name, unit, tuple(Cell(text(run)) for run in runs) + nothing))
    return [line for line in found if any(cell.text not in ("", NO_VALUE) for cell in line.cells)]


def _figure_line(at: int, figure: Figure, columns: Sequence[Column], published: Sequence[Published]) -> Line:
    own = tuple(_cell(column.estimates[at]) for column in columns)
    return Line(figure.name, figure.unit, own + tuple(Cell(_published(figure, each)) for each in published))


def _cell(estimate: Estimate) -> Cell:
    return Cell(estimate.text or NO_VALUE, estimate.comparison, estimate.word)


def _published(figure: Figure, result: Published) -> str:
    if figure.name == "acknowledged":
        return figure.text(result.publish_rate)
    if figure.name == "read":
        return figure.text(result.consume_rate)
    value = None if figure.percentile is None else result.percentile_ms(*figure.percentile)
    return NO_VALUE if value is None else figure.text(value)


def _samples(series: Series, measure: str) -> str:
    count = int(median(entry.result.samples(measure) for entry in series.entries))
    return f"{count:,}" if count else NO_VALUE


def _generator_share(runs: Sequence[LoadResult]) -> str:
    return f"{max(run.generator_cpu_permille for run in runs) / 10:.0f} %"


def _generator_cost(runs: Sequence[LoadResult]) -> str:
    found = [run.generator_cpu_s / run.acknowledged * 1e6 for run in runs if run.acknowledged]
    return f"{median(found):.2f}" if found else NO_VALUE


def _generator_memory(runs: Sequence[LoadResult]) -> str:
    return f"{max(run.generator_rss_bytes for run in runs) / 2**20:,.0f}"


def _verified(runs: Sequence[LoadResult]) -> str:
    return f"{sum(run.findings.read for run in runs):,}"


def _unacknowledged(runs: Sequence[LoadResult]) -> str:
    return NO_VALUE if all(run.acks for run in runs) else f"{sum(run.findings.unknown for run in runs):,}"


def _unread(runs: Sequence[LoadResult]) -> str:
    return NO_VALUE if all(run.acks for run in runs) else f"{sum(run.findings.unread for run in runs):,}"


def _violations(runs: Sequence[LoadResult]) -> str:
    return NO_VALUE if all(run.stated for run in runs) else violations([run.findings for run in runs])


def violations(findings: Sequence[Findings]) -> str:
    """Return the sums of all violations in words: ``none``, or how many of each kind."""
    sums = {name: sum(getattr(finding, name) for finding in findings) for name in VIOLATIONS}
    return ", ".join(f"{count:,} {VIOLATIONS[name]}" for name, count in sums.items() if count) or "none"


def _valid(runs: Sequence[LoadResult]) -> str:
    valid = sum(run.outcome != "INVALID" for run in runs)
    return f"{len(runs)}" if valid == len(runs) else f"{valid} of {len(runs)} (others INVALID)"


def reasons(series: Series) -> Iterator[str]:
    """Yield what is wrong with the runs of a series, and in how many."""
    found = [entry.result.reason for entry in series.entries if entry.result.reason]
    for each in dict.fromkeys(found):
        count = found.count(each)
        yield each if len(series.entries) == 1 else f"{each} ({count} of {len(series.entries)} runs)"
    yield from dict.fromkeys(entry.result.clock_warning for entry in series.entries if entry.result.clock_warning)


def searched(series: Series) -> Iterator[str]:
    """Yield what the searches of a series found: a sentence for each, and what they mean together."""
    found = [entry.search for entry in series.entries if entry.search is not None]
    yield from dict.fromkeys(sentence(each) for each in found)
    if len(found) == 1:
        yield "Its uncertainty is the step between both rates; repetitions give an interval (--repeat 5)."


def sentence(search: Sustained) -> str:
    """Return what a search found."""
    if not search.rate:
        return f"No rate was sustained: {search.steps[-1].complaint}."
    if search.generator_was_the_limit:
        return f"At least {search.rate:,.0f} records/s; beyond that the load generator was the limit."
    if search.beyond is None:
        return f"At least {search.rate:,.0f} records/s; the search ended there."
    why = next(each.complaint for each in reversed(search.steps) if each.rate == search.beyond)
    return f"{search.rate:,.0f} records/s are sustained, and {search.beyond:,.0f} are not: {why}."


def write(
    entries: Sequence[Entry], path: Path, command: str, machine: str, published: Sequence[Published] = ()
) -> Path:
    """Write the page, and return its path. It has our own runs, published results, or both."""
    every = series_of(entries)
    columns = compared(every)
    workloads = [entry.result.workload.name for entry in entries] or [each.workload for each in published]
    names = [each.name for each in every] + [each.name for each in published]
    pictures = [rates(every, published)]
    pictures += [percentiles(every, measure, published) for measure in LABELS]
    curves = [curve for curve in curves_of(entries) if has_curve(curve)]
    if curves:
        pictures.append(against_rate(curves))
    html = _TEMPLATE.render(
        title="; ".join(dict.fromkeys(workloads)),
        names=names,
        lines=lines(columns, published),
        faults=[(each.name, fault) for each in every for run in each.entries for fault in run.result.fault_figures],
        verdicts=[(each.name, each.outcome, list(reasons(each)), list(searched(each))) for each in every],
        comparisons=list(sentences(columns)),
        published=published,
        has_intervals=any(len(each.entries) > 1 for each in every),
        pictures=[picture for picture in pictures if picture],
        command=command,
        machine=machine if entries else "",
    )
    path.write_text(html, encoding="utf-8")
    return path


def rates(every: Sequence[Series], published: Sequence[Published] = ()) -> str:
    """Return an SVG of the records that were offered, acknowledged and read in each second. Of several runs of a series
    the middle one is drawn, by what was acknowledged."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = picture.subplots()
        for series, colour in zip(every, _colours(len(every)), strict=True):
            result = _middle(series)
            seconds = [at for at in range(result.end) if at in result.measures.seconds]
            for name, style, width in (("offered", "--", 0.8), ("acknowledged", "-", 1.5), ("read", ":", 1.5)):
                values = [getattr(result.measures.seconds[at], name) for at in seconds]
                label = series.name if name == "acknowledged" else None
                axes.plot(seconds, values, style, color=colour, linewidth=width, label=label)
            axes.axvspan(0, result.first, color="#f3f3f3", linewidth=0, zorder=0)
            for fired in (fault for fault in result.faults if fault.at_s >= 0):
                axes.axvspan(fired.at_s, max(fired.at_s, fired.restored_s), color="#f6dcd9", linewidth=0, zorder=0)
        for each, colour in zip(published, _colours(len(published), len(every)), strict=True):
            places = [PERIOD_S * (at + 1) for at in range(len(each.publish_rates))]
            axes.plot(places, each.publish_rates, "-", color=colour, label=each.name)
            axes.plot(places[: len(each.consume_rates)], each.consume_rates, ":", color=colour)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        # A published run may be much longer than ours.
        axes.set_xlim(0, max((entry.result.end for series in every for entry in series.entries), default=None))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("seconds since the start" + (" (grey: warm-up)" if every else ""))
        axes.set_ylabel("records in a second")
        axes.set_title("Rates (line: acknowledged, dotted: read, dashed: offered)", fontsize=10, loc="left", color=INK)
        _legend(picture, axes)
        return svg(picture)


def _middle(series: Series) -> LoadResult:
    """Return the run in the middle by its acknowledged rate."""
    entries = series.valid or series.entries
    return sorted((entry.result for entry in entries), key=lambda each: each.written_rate)[len(entries) // 2]


def percentiles(every: Sequence[Series], measure: str, published: Sequence[Published] = ()) -> str:
    """Return an SVG of a latency by percentile, whose axis has as much room for each nine. Each run has a line.
    Nothing if no run has one."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = picture.subplots()
        for series, colour in zip(every, _colours(len(every)), strict=True):
            for number, entry in enumerate(series.valid or series.entries):
                result = entry.result
                histogram = result.measures.histogram(measure, result.first, result.end)
                shares = [share for share in SHARES if has_percentile(result.samples(measure), share)]
                values = [quantile_us(histogram, share) / 1000 for share in shares]
                label = f"{series.name} ({_samples(series, measure)} batches)" if number == 0 else None
                if result.stated is not None and measure == "publish":
                    shares, values = map(list, zip(*sorted(result.stated.quantiles_ms.items()), strict=True))
                    label = f"{series.name} (as stated)" if number == 0 else None
                width = 1.5 if len(series.entries) == 1 else 0.8
                axes.plot([1 / (1 - share) for share in shares], values, color=colour, linewidth=width, label=label)
        for each, colour in zip(published, _colours(len(published), len(every)), strict=True):
            points = [
                (1 / (1 - share), value)
                for share, value in each.quantiles_ms.get(measure, ())
                if SHARES[0] <= share < 1 and has_percentile(each.records, share)
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True), "--", color=colour, label=f"{each.name} ({each.records:,} records)"
                )
        if not any(len(line.get_xdata()) for line in axes.lines):  # type: ignore[arg-type]
            return ""
        axes.set_xscale("log")
        _log_ms(axes)
        axes.set_xlim(1.2, 11_000)
        axes.set_xticks([2, 10, 100, 1_000, 10_000], ["50", "90", "99", "99.9", "99.99"])
        axes.set_xlabel("percentile (drawn as far as ten samples lie beyond it)")
        axes.set_ylabel("ms")
        axes.set_title(LABELS[measure], fontsize=10, loc="left", color=INK)
        _legend(picture, axes)
        return svg(picture)


def has_curve(curve: Series) -> bool:
    """Return whether there are several rates to draw."""
    rates = {entry.result.wanted_records_per_s for entry in curve.entries}
    return len(rates) > 1 or any(entry.search is not None for entry in curve.entries)


def against_rate(curves: Sequence[Series]) -> str:
    """Return an SVG of percentiles of the response latency against the rate that was acknowledged."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = picture.subplots()
        for curve, colour in zip(curves, _colours(len(curves)), strict=True):
            results = [
                result
                for entry in curve.entries
                for result in ([step.result for step in entry.search.steps] if entry.search else [entry.result])
            ]
            for share, style in ((0.5, ":"), (0.99, "-")):
                found = [(result.rate("acknowledged"), result.percentile_ms("response", share)) for result in results]
                points = sorted((rate, latency_ms) for rate, latency_ms in found if latency_ms is not None)
                places, latencies_ms = [rate for rate, _ in points], [latency_ms for _, latency_ms in points]
                label = f"{curve.name}: p{share * 100:g}"
                axes.plot(places, latencies_ms, style, marker="o", markersize=3, color=colour, label=label)
        _log_ms(axes)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("records acknowledged in a second")
        axes.set_ylabel("ms")
        axes.set_title("Response latency against the rate", fontsize=10, loc="left", color=INK)
        _legend(picture, axes)
        return svg(picture)


def _colours(count: int, first: int = 0) -> list[str]:
    return [COLOURS[(first + number) % len(COLOURS)] for number in range(count)]


def _log_ms(axes: Axes) -> None:
    """Make the axis of latencies logarithmic, with three marks for each decade, since many pictures have but one."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()


def _legend(picture: Picture, axes: Axes) -> None:
    """Put the legend below, where it covers no line."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        picture.legend(handles, labels, loc="outside lower left", ncols=2, frameon=False, fontsize=8)


_SOURCE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Benchmark: {{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
tr > :first-child { position: sticky; left: 0; background: #fff; min-width: 8.5rem; }
tbody th { font-weight: 400; } .unit { color: #777; font-size: 12px; display: block; }
.ratio { color: #777; font-size: 12px; display: block; }
.ratio.better { color: #2c6b2f; } .ratio.worse { color: #a3262a; }
.FAILED { color: #a3262a; font-weight: 600; } .INVALID { color: #8a6d1f; font-weight: 600; }
.PASSED { color: #2c6b2f; font-weight: 600; } .UNVERIFIED { color: #555; font-weight: 600; }
.picture svg { max-width: 100%; height: auto; display: block; margin: 0; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; }
  .picture svg { max-width: none; width: 40rem; }
  td { white-space: normal; min-width: 8.5rem; }
}
code { font-size: 13px; overflow-wrap: anywhere; }
.note { color: #555; font-size: 13px; }
</style>
<h1>{{ title }}</h1>
{% for name, outcome, why, found in verdicts %}
<p><span class="{{ outcome }}">{{ outcome }}</span> <b>{{ name }}</b>
{%- if why + found %}: {{ (why + found)|join(" ") }}{% endif %}</p>
{% endfor %}
{% for each in comparisons %}<p>{{ each }}</p>{% endfor %}
<div class="wide"><table>
<thead><tr><th></th>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for line in lines %}
<tr><th>{{ line.name }}{% if line.unit %}<span class="unit">{{ line.unit }}</span>{% endif %}</th>
{% for cell in line.cells %}<td>{{ cell.text }}{% if cell.comparison %}
<span class="ratio {{ cell.word if cell.word in ("better", "worse") }}">{{ cell.comparison }}</span>
{%- endif %}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if has_intervals %}
<p class="note">Medians of the valid runs, with 95 % confidence intervals from a bootstrap that draws runs (five runs or
more), or else with the range of the runs. Ratios are those of geometric means to the first target with the same
workload and rate. Their intervals hold for all figures together. If one contains 1, no difference is shown. A ratio is
too noisy to compare if its interval contains 1 and not even a factor of {{ max_least_ratio }} would have been shown;
then it has the range of the ratios of single runs.</p>
{% endif %}
<p class="note">Each value that was read is compared with what was sent. PASSED: no acknowledged record was lost,
repeated, reordered or damaged. UNVERIFIED: tools that verify nothing have sent and read. INVALID: the run says nothing
of the brokers. The records of a batch have one latency, so batches are the samples, and a percentile with fewer than
ten of them beyond it is not shown ({{ dash }}).</p>
{% if faults %}
<h2>Faults</h2>
<div class="wide"><table>
<thead><tr><th></th><th>fault</th><th>before, records/s</th><th>p99, ms</th><th>during</th><th>p99, ms</th>
<th>until recovered</th><th>p99, ms</th><th>recovered after</th><th>evidence</th></tr></thead>
<tbody>
{% for name, each in faults %}
<tr><th>{{ name }}</th>
<td>{{ each.fired.fault.kind }} at {{ "%.0f"|format(each.fired.at_s) }} s, node {{ each.fired.node }}</td>
{% for span in (each.baseline, each.during, each.recovery) %}
<td>{{ "{:,.0f}".format(span.acknowledged_per_s) }}</td><td>{{ "{:,.0f}".format(span.p99_ms) }}</td>
{% endfor %}
<td>{{ "%.0f s"|format(each.recovered_s) if each.recovered_s >= 0 else "not recovered" }}</td>
<td>{{ each.fired.evidence or "nothing proves that it fired" }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Acknowledged records and response latency. <i>During</i> is from the fault until the node was back. A
load has recovered in the first of three seconds in which 95 % of the rate before is acknowledged, with a p99 of at most
twice the one before (50 ms are never too much).</p>
{% endif %}
{% for each in published %}
<p class="note">{{ each.name }}: {{ each.workload }}{% if each.topics %}, {{ each.topics }} topics with
{{ each.partitions }} partitions each, values of {{ each.message_size }} bytes{% endif %}, from {{ each.file }}. It was
measured elsewhere, by OpenMessaging Benchmark: nothing there was verified, and its brokers and machine differ. No ratio
is computed.</p>
{% endfor %}
{% for picture in pictures %}<div class="wide picture">{{ picture|safe }}</div>
{% endfor %}
<h2>Repeat it</h2>
<p><code>{{ command }}</code></p>
{% if machine %}<p>{{ machine }}</p>{% endif %}
</html>
"""
_TEMPLATE: Final[Any] = Environment(autoescape=True, trim_blocks=True).from_string(_SOURCE)
_TEMPLATE.globals |= {"dash": NO_VALUE, "max_least_ratio": f"{MAX_LEAST_RATIO:g}"}
