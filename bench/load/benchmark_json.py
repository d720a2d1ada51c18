"""A benchmark's figures in pytest-benchmark's JSON. ``pytest-benchmark compare`` lists them beside others.

There, each benchmark is a time, and less is better. So a rate becomes the seconds of one record, and memory is left
out. The runs of a series are the rounds. The key ``crucible``, which pytest-benchmark does not read, has all figures of
all runs in their own units.
"""

import platform
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bench.load.comparison import COMPARED, Figure, Series, values_of
from bench.machine import commit, machine

SECONDS: Final = {"s": 1.0, "ms": 1e-3, "s for a million records": 1e-6}
"""The seconds that a unit of time stands for."""
PER_SECOND: Final = "records/s"
VERSION: Final = "5.1.0"
"""The version of pytest-benchmark whose format this is."""


def document(every: Sequence[Series]) -> dict[str, Any]:
    """Return the content of a file. Only valid runs are in it."""
    about, at = machine(), commit()
    return {
        "machine_info": {
            "node": platform.node(),
            "processor": platform.processor(),
            "machine": platform.machine(),
            "python_implementation": platform.python_implementation(),
            "python_version": platform.python_version(),
            "system": platform.system(),
            "release": platform.release(),
            "cpu": {"brand_raw": about["cpu"], "count": about["cores"]},
        },
        "commit_info": {"id": at.removesuffix("-dirty"), "dirty": at.endswith("-dirty"), "project": "crucible"},
        "benchmarks": [benchmark for series in every if series.valid for benchmark in _benchmarks(series)],
        "crucible": [_series(each) for each in every],
        "datetime": datetime.now(UTC).isoformat(),
        "version": VERSION,
    }


def _series(series: Series) -> dict[str, Any]:
    """Return all figures of a series. ``values`` are those of its valid runs."""
    return {
        "target": series.target,
        "name": series.name,
        "workload": series.entries[0].result.workload.name,
        "outcome": series.outcome,
        "reasons": [entry.result.reason for entry in series.entries if entry.result.reason],
        "figures": [
            {"name": each.name, "unit": each.unit, "less_is_better": each.less_is_better, "values": values}
            for each in COMPARED
            if series.valid and (values := values_of(series, each))
        ],
    }


def _benchmarks(series: Series) -> Iterator[dict[str, Any]]:
    workload = series.entries[0].result.workload.name
    for figure in COMPARED:
        seconds = _seconds(figure, values_of(series, figure))
        if not seconds:
            continue
        name = f"{figure.name}[{series.name}]"
        yield {
            "group": f"{workload}: {figure.name}",
            "name": name,
            "fullname": f"{workload}::{name}",
            "params": {"target": series.target},
            "param": series.target,
            "extra_info": {"unit": figure.unit, "outcome": series.outcome},
            "options": {},
            "stats": _stats(seconds),
        }


def _seconds(figure: Figure, values: Sequence[float]) -> list[float]:
    if figure.unit == PER_SECOND:
        return [1 / value for value in values] if all(values) else []
    return [value * SECONDS[figure.unit] for value in values] if figure.unit in SECONDS else []


def _stats(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the statistics that pytest-benchmark computes, by its names."""
    ordered = sorted(seconds)
    mean = statistics.fmean(ordered)
    spread = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    low, middle, high = _quartile(ordered), statistics.median(ordered), _quartile(ordered[::-1])
    near = [second for second in ordered if low - 1.5 * (high - low) <= second <= high + 1.5 * (high - low)]
    strayed = sum(abs(second - mean) > spread for second in ordered)
    outliers = len(ordered) - len(near)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": spread,
        "rounds": len(ordered),
        "median": middle,
        "iqr": high - low,
        "q1": low,
        "q3": high,
        "iqr_outliers": outliers,
        "stddev_outliers": strayed,
        "outliers": f"{strayed};{outliers}",
        "ld15iqr": near[0],
        "hd15iqr": near[-1],
        "ops": 1 / mean,
        "total": sum(ordered),
        "iterations": 1,
        "data": list(seconds),
    }


def _quartile(ordered: Sequence[float]) -> float:
    """Return the quartile at the beginning: the median of that half, or between neighbours if the count is odd."""
    count = len(ordered)
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2])
    place, rest = divmod(count, 4)
    if count == 1:
        return ordered[0]
    if rest == 1:
        return 0.25 * ordered[place - 1] + 0.75 * ordered[place]
    return 0.75 * ordered[place] + 0.25 * ordered[place + 1]
