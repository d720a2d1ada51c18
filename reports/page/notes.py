"""The page's honest notes: what this run cannot show, as its manifest and its tables tell."""

from collections.abc import Sequence

from reports.collect import Findings
from reports.manifest import Manifest
from reports.verdict import GuaranteeResult

_ABSENT = {
    "latency": "No latency histograms were recorded. The latency figures are exact values from the operations.",
    "load": "The workers did not record their own load. Offered and sent load are counted from the operations.",
    "broker": "Broker metrics were not sampled.",
    "trace": "No trace of the nodes was recorded, so the mechanisms' own guarantees were not checked.",
    "ends": "Partitions were not read to their end, so unread records at the end would go unnoticed.",
}
"""What it means for the report if a run lacks one of these tables."""


def notes(manifest: Manifest, findings: Findings, guarantees: Sequence[GuaranteeResult]) -> list[str]:
    found = [text for table, text in _ABSENT.items() if table not in findings.present]
    if manifest.world == "live":
        found.append(
            "Clients, proxies and brokers shared one machine and the loopback interface. Compare the latencies "
            "with other runs on this machine, not with those of a network."
        )
        busiest = max((row["cpu_permille"] or 0 for row in findings.load), default=0)
        if busiest > 900:
            found.append(
                f"A load worker was busy for {busiest / 10:.0f} % of a second, so it may itself have added latency."
            )
    else:
        found.append("This run was simulated. Its times are virtual and say nothing about speed.")
    if findings.facts.get("changes") and not findings.facts.get("final_descriptions"):
        found.append(
            "Nobody described the topics at the end, so the loss of an acknowledged change would go unnoticed."
        )
    unfinished = sum(not row["finished"] for row in findings.transfers)
    if unfinished:
        downloads = "One snapshot download" if unfinished == 1 else f"{unfinished} snapshot downloads"
        found.append(f"{downloads} did not finish within the run.")
    if any(not row["cause"] for row in findings.failovers):
        found.append(
            "Where a controller was lost without a known cause, its last line in the trace stands for the "
            "moment of the loss. The time without a controller is then an estimate."
        )
    if manifest.warm_up_us:
        found.append(
            f"The first {manifest.warm_up_us / 1e6:g} s are warm-up. The latency tables and the percentile plot leave "
            "them out, and the charts over time show them."
        )
    unchecked = [one.name for one in guarantees if one.status in ("not checked", "nothing to judge")]
    if unchecked:
        found.append(f"These guarantees were not judged in this run: {', '.join(unchecked)}.")
    unknown = findings.facts.get("unknown_operations", 0)
    if unknown:
        operations = "One operation has" if unknown == 1 else f"{unknown:,} operations have"
        found.append(
            f"{operations} an unknown end (a timeout or a lost connection). What was written may be there or not. "
            "Both are allowed."
        )
    if manifest.dirty:
        found.append("The working tree had uncommitted changes, so the commit does not name exactly what ran.")
    found.append(
        "A percentile is left out if fewer than ten samples lie beyond it. Values from histograms are upper bounds, "
        "at most 1 % too high."
    )
    return [*manifest.notes, *found]
