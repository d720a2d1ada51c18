"""The lines printed while a load runs: each second, what was acknowledged and read, and why a rate is not reached.

There are three causes, and a second may have several: brokers that respond too slowly (partitions wait because as many
requests are in flight as may be), brokers out of reach or refusing (partitions without a leader, or with batches to
send again), and the generator itself (its thread never sleeps, or its timer is late).
"""

from collections.abc import Mapping
from typing import Final

from bench.load.results import BUSY_PERMILLE, LATE_US

NEARLY: Final = 0.9
"""The share of a rate below which a second is remarked on. Single seconds vary."""
Report = Mapping[str, int]
"""Sums over the workers' last reports (``bench/locust/messages.py``)."""


def line(before: Report, report: Report, wanted_per_s: float) -> str:
    """Return what happened between two reports, in records a second. ``wanted_per_s`` is 0 without a schedule.

    Nothing is before the first report, when clients connect, so that it is not remarked on.
    """
    seconds = (report["worst_at_us"] - before.get("worst_at_us", 0)) / 1e6
    if seconds <= 0:
        return "the workers have not reported since"
    acknowledged, read = ((report[name] - before.get(name, 0)) / seconds for name in ("acknowledged", "read"))
    word = "acknowledged"
    if unacknowledged := report.get("unacknowledged", 0):
        acknowledged, word = (unacknowledged - before.get("unacknowledged", 0)) / seconds, "sent"
    text = f"{acknowledged:,.0f}/s {word}, {read:,.0f}/s read, {report['lag']:,} to read"
    if to_transform := report.get("to_transform", 0):
        text += f", {to_transform:,} to transform"
    if not before or not wanted_per_s or acknowledged >= NEARLY * wanted_per_s:
        return text
    return f"{text}; below {wanted_per_s:,.0f}/s: {'; '.join(causes(before, report)) or 'no cause is seen'}"


def causes(before: Report, report: Report) -> list[str]:
    """Return why less was acknowledged than the schedule wants, a cause each. Clients of other libraries do not report
    what their partitions wait for."""
    found = []
    failed = report.get("failed", 0) - before.get("failed", 0)
    if failed:
        found.append(f"the brokers refused {failed:,} records, or did not respond in time")
    unreachable = report.get("waits_for_leaders", 0)
    if unreachable:
        found.append(f"{unreachable:,} partitions have no connected leader, or send again after an error")
    if report.get("worst_wanted_permille", 0) >= BUSY_PERMILLE:
        found.append("the generator never sleeps")
    if report.get("worst_lag_us", 0) >= LATE_US:
        found.append(f"the generator is {report['worst_lag_us'] / 1000:,.0f} ms late")
    full = report.get("waits_for_responses", 0)
    if full:
        found.append(f"the brokers: {full:,} partitions wait for responses, with all requests in flight")
    return found
