"""The page of a load benchmark: one HTML file with the verdicts, figures and pictures of all its runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment
from matplotlib import rc_context
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import StrMethodFormatter

from bench.drawing import INK, STYLE, WIDTH_IN, svg
from bench.load.clients import NATIVE
from bench.load.measures import quantile_us
from bench.load.results import LoadResult
from bench.load.search import Sustained

COLOURS: Final = ("#0b6e99", "#c4552d", "#3f7d3a", "#7a4fa3", "#8a6d1f", "#444444")
SHARES: Final = tuple(1 - 10 ** (-step / 10) for step in range(1, 46))
"""Shares of a percentile plot, evenly spread over the nines."""
LABELS: Final = {
    "response": "response latency (from the time at which a batch was due)",
    "publish": "publish latency (from the time at which it was sent)",
    "end_to_end": "end-to-end latency",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One target's run of a workload. ``search`` is None unless the maximum sustainable rate was looked for."""

    result: LoadResult
    search: Sustained | None = None


def name_of(entry: Entry, entries: Sequence[Entry]) -> str:
    """Return what tells an entry from the others: its target, and what else differs."""
    result = entry.result
    parts = [result.target]
    if len({each.result.client for each in entries}) > 1 or result.client != NATIVE:
        parts.append(result.client)
    if len({each.result.workload.name for each in entries}) > 1:
        parts.append(result.workload.name)
    if len({each.result.wanted_records_per_s for each in entries}) > 1:
        parts.append(f"{result.wanted_records_per_s:,.0f}/s" if result.wanted_records_per_s else "no limit")
    return ", ".join(parts)


def write(entries: Sequence[Entry], path: Path, command: str, machine: str) -> Path:
    """Write the page, and return its path."""
    is_searched = any(entry.search is not None for entry in entries)
    html = _TEMPLATE.render(
        title=", ".join(dict.fromkeys(each.result.workload.name for each in entries)),
        headings=HEADINGS,
        rows=[
            (name_of(each, entries), each.result.outcome, each.result.reason, cells(each.result)) for each in entries
        ],
        searches=[(each.result.target, sentence(each.search)) for each in entries if each.search is not None],
        pictures=[rates(entries), *[percentiles(entries, measure) for measure in LABELS]]
        + ([against_rate(entries)] if is_searched or _has_curve(entries) else []),
        command=command,
        machine=machine,
    )
    path.write_text(html, encoding="utf-8")
    return path


HEADINGS: Final = (
    "offered, records/s",
    "acknowledged",
    "read",
    "publish p50 / p99 / p99.9 / p99.99, ms",
    "delay p99, ms",
    "response p99, ms",
    "end-to-end p50 / p99, ms",
    "brokers: processor s for a million",
    "brokers: memory",
    "generator: processor",
)


def cells(result: LoadResult) -> tuple[str, ...]:
    """Return the figures of a run in the order of HEADINGS."""
    acknowledged = result.rate("acknowledged")
    records = acknowledged * (result.end - result.first)
    cpu = f"{result.brokers_cpu_s / records * 1e6:.2f}" if result.brokers_cpu_s >= 0 and records else "not known"
    memory = f"{result.brokers_rss_bytes / 2**20:,.0f} MiB" if result.brokers_rss_bytes >= 0 else "not known"
    return (
        f"{result.offered_rate:,.0f}",
        f"{acknowledged:,.0f}",
        f"{result.rate('read'):,.0f}",
        " / ".join(f"{result.quantile_ms('publish', share):,.1f}" for share in (0.5, 0.99, 0.999, 0.9999)),
        f"{result.quantile_ms('delay', 0.99):,.1f}",
        f"{result.quantile_ms('response', 0.99):,.1f}",
        " / ".join(f"{result.quantile_ms('end_to_end', share):,.0f}" for share in (0.5, 0.99)),
        cpu,
        memory,
        f"{result.generator_cpu_permille / 10:.0f} %",
    )


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


def rates(entries: Sequence[Entry]) -> str:
    """Return an SVG of the records acknowledged and read in each second."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, 2.9), layout="constrained")
        axes = picture.subplots()
        for entry, colour in zip(entries, _colours(entries), strict=True):
            result = entry.result
            seconds = [at for at in range(result.end) if at in result.measures.seconds]
            for name, style in (("acknowledged", "-"), ("read", ":")):
                values = [getattr(result.measures.seconds[at], name) for at in seconds]
                axes.plot(seconds, values, style, color=colour, label=f"{name_of(entry, entries)}: {name}")
            axes.axvspan(0, result.first, color="#f3f3f3", linewidth=0)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("seconds since the start (grey: warm-up)")
        axes.set_ylabel("records in a second")
        axes.legend(frameon=False, fontsize=8)
        return svg(picture)


def percentiles(entries: Sequence[Entry], measure: str) -> str:
    """Return an SVG of a latency by percentile, whose axis has as much room for each nine."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, 2.9), layout="constrained")
        axes = picture.subplots()
        for entry, colour in zip(entries, _colours(entries), strict=True):
            result = entry.result
            histogram = result.measures.histogram(measure, result.first, result.end)
            total = sum(histogram.values())
            # A percentile needs at least ten records beyond it.
            shares = [each for each in SHARES if (1 - each) * total >= 10]
            if shares:
                values = [quantile_us(histogram, each) / 1000 for each in shares]
                label = f"{name_of(entry, entries)} ({total:,} records)"
                axes.plot([1 / (1 - each) for each in shares], values, color=colour, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_xticks([2, 10, 100, 1_000, 10_000], ["50", "90", "99", "99.9", "99.99"])
        axes.minorticks_off()
        axes.set_xlabel("percentile")
        axes.set_ylabel("ms")
        axes.set_title(LABELS[measure], fontsize=10, loc="left", color=INK)
        if axes.has_data():
            axes.legend(frameon=False, fontsize=8)
        return svg(picture)


def _has_curve(entries: Sequence[Entry]) -> bool:
    return len({each.result.wanted_records_per_s for each in entries}) > 1


def against_rate(entries: Sequence[Entry]) -> str:
    """Return an SVG of the 99th percentile of the response latency against the rate that was acknowledged."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, 2.9), layout="constrained")
        axes = picture.subplots()
        targets = list(dict.fromkeys(each.result.target for each in entries))
        for target, colour in zip(targets, COLOURS * len(targets), strict=False):
            results = [
                result
                for each in entries
                if each.result.target == target
                for result in ([step.result for step in each.search.steps] if each.search else [each.result])
            ]
            points = sorted((each.rate("acknowledged"), each.quantile_ms("response", 0.99)) for each in results)
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=target)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("records acknowledged in a second")
        axes.set_ylabel("response latency p99, ms")
        axes.legend(frameon=False, fontsize=8)
        return svg(picture)


def _colours(entries: Sequence[Entry]) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(len(entries))]


_SOURCE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Benchmark: {{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
.FAILED { color: #a3262a; font-weight: 600; } .INVALID { color: #8a6d1f; font-weight: 600; }
.PASSED { color: #2c6b2f; font-weight: 600; }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
code { font-size: 13px; overflow-wrap: anywhere; }
</style>
<h1>{{ title }}</h1>
{% for name, outcome, reason, _ in rows %}
<p><span class="{{ outcome }}">{{ outcome }}</span> {{ name }}{% if reason %}: {{ reason }}{% endif %}</p>
{% endfor %}
{% for target, found in searches %}<p><b>{{ target }}</b>: {{ found }}</p>{% endfor %}
<div class="wide"><table>
<tr><th></th>{% for name, _, _, _ in rows %}<th>{{ name }}</th>{% endfor %}</tr>
{% for heading in headings %}{% set line = loop.index0 %}
<tr><th>{{ heading }}</th>{% for _, _, _, cells in rows %}<td>{{ cells[line] }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
<p>Each value that was read is compared with what was sent. PASSED: no acknowledged record was lost, repeated, reordered
or damaged. INVALID: the run says nothing of the brokers. Publish latency counts from the time at which a batch was
sent; delay is how late it was sent; response latency is both together; end-to-end latency counts from the batch's
timestamp.</p>
{% for picture in pictures %}{{ picture|safe }}{% endfor %}
<h2>Repeat it</h2>
<p><code>{{ command }}</code></p>
<p>{{ machine }}</p>
</html>
"""
_TEMPLATE: Final[Any] = Environment(autoescape=True, trim_blocks=True).from_string(_SOURCE)
