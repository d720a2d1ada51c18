"""Write index.html, one self-contained page, from findings and verdict alone."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports.collect import Findings
from reports.decide import generator_limits
from reports.job_rows import Row, without_presets
from reports.manifest import Manifest
from reports.mirrored import mirrored, rewinds
from reports.page import control_plane, groups, transactions, words
from reports.page.baseline import comparisons, rows_for_page
from reports.page.faults import Impact, attacks, impacts
from reports.page.latency import COLUMNS, MIN_SAMPLES, Contrast, contrasts, latency_rows, thin_operations
from reports.plots.catalogue import draw_all
from reports.read_tables import JobConfig
from reports.rows import is_hit
from reports.verdict import GuaranteeResult, Verdict

Event = TypeVar("Event")
FOLDER = Path(__file__).parent
MAX_ANOMALIES = 500
MAX_REWINDS = 50
MAX_EVENTS = 100
"""Number of rows of a table of events, of which a run of hours has thousands. The longest ones are shown."""


def write_page(
    folder: Path,
    manifest: Manifest,
    findings: Findings,
    verdict: Verdict,
    baseline: tuple[Manifest, Findings] | None = None,
) -> Path:
    """``folder`` must exist. Figures are copied there as PNG."""
    seconds = run_seconds(manifest, findings)
    drawings = draw_all(findings, baseline[1] if baseline else None, seconds, folder)
    page = folder / "index.html"
    context = _context(manifest, findings, verdict, baseline)
    page.write_text(environment().get_template("page.html.j2").render(drawings=drawings, **context), encoding="utf-8")
    return page


def run_seconds(manifest: Manifest, findings: Findings) -> int:
    """The length of the time axis, which ends with the history's last completion or fault."""
    healed_us = max((int(row["until_us"]) for row in findings.fault_hits), default=0)
    last_us = max(findings.facts.get("last_us", 0), manifest.duration_us, healed_us)
    longest = 4 * max(manifest.duration_us, findings.facts.get("last_us", 0), 1_000_000)
    return max(1, -(-min(last_us, longest) // 1_000_000))


def environment(*folders: Path) -> Environment:
    """Return an environment with the templates of this folder and of ``folders``."""
    made = Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        micros=words.micros,
        count=words.count,
        seconds=words.seconds,
        size=words.size,
        clock=words.clock,
        attribute_of=lambda name, value: getattr(value, name),
    )
    made.globals.update(
        style=(FOLDER / "style.css").read_text(encoding="utf-8"),
        script=(FOLDER / "script.js").read_text(encoding="utf-8"),
    )
    return made


def _context(
    manifest: Manifest, findings: Findings, verdict: Verdict, baseline: tuple[Manifest, Findings] | None
) -> dict[str, Any]:
    costs = impacts(findings)
    failovers, transfers = control_plane.failovers(findings), control_plane.transfers(findings)
    rebalances, moves = groups.rebalances(findings), groups.coordinators(findings)
    every = [example for guarantee in verdict.guarantees for example in guarantee.examples]
    every.sort(key=lambda anomaly: (anomaly.at_us, anomaly.guarantee))
    return {
        "manifest": manifest,
        "verdict": verdict,
        "says": verdict.outcome.name.title(),
        "tone": verdict.outcome.name.lower(),
        "attacks": attacks(findings, verdict, costs),
        "tiles": _tiles(findings, costs),
        "contrasts": contrasts(findings.percentiles),
        "sides": _sides(contrasts(findings.percentiles)),
        "strained": strained(manifest.machine),
        "settings": JobConfig(),
        "loaded_seconds": sum(row["in_load"] for row in findings.load),
        "calm_seconds": sum(row["calm"] for row in findings.load),
        "calm_slip_us": max((row["max_slip_us"] or 0 for row in findings.load if row["calm"]), default=None),
        "judged": [guarantee for guarantee in verdict.guarantees if not _is_idle(guarantee)],
        "unjudged": [guarantee for guarantee in verdict.guarantees if _is_idle(guarantee)],
        "identity": _identity(manifest),
        "load": _load(findings),
        "generator_limits": generator_limits(findings),
        "generator": sorted(findings.generator, key=lambda row: row["worker"]),
        "latency_columns": ["count", "min", *(title for _, title, _ in COLUMNS), "max"],
        "latency": latency_rows(findings.percentiles),
        "thin_latencies": thin_operations(findings.percentiles),
        "least_latencies": MIN_SAMPLES,
        "faults": sorted(findings.faults, key=lambda row: (row["from_us"], row["name"])),
        "impacts": costs,
        "outcomes": _outcomes(findings),
        "anomalies": every[:MAX_ANOMALIES],
        "anomaly_total": sum(guarantee.anomalies for guarantee in verdict.guarantees),
        "baseline": baseline[0] if baseline else None,
        "comparisons": rows_for_page(comparisons(findings, baseline[1])) if baseline else [],
        "notes": notes(manifest, findings, verdict.guarantees),
        "broker_table": _broker_table(findings),
        "failovers": _longest(failovers, lambda failover: failover.without_us),
        "failover_total": len(failovers),
        "failover_summary": control_plane.summary(failovers),
        "transfers": _longest(transfers, lambda transfer: transfer.took_us),
        "transfer_total": len(transfers),
        "groups": sorted(findings.groups, key=lambda row: row["group"]),
        "rebalances": _longest(rebalances, lambda rebalance: rebalance.took_us),
        "rebalance_total": len(rebalances),
        "rebalance_summary": groups.summary(rebalances),
        "coordinators": _longest(moves, lambda move: move.without_us),
        "move_total": len(moves),
        "transactions": transactions.ends(findings),
        "decided": transactions.decided(findings),
        "transaction_costs": transactions.costs(findings),
        "stable_offsets": transactions.stall_times(findings),
        "stalls": transactions.stalls(findings),
        "mirrors": mirrored(findings),
        "mirror_rewinds": rewinds(findings)[:MAX_REWINDS],
    }


def _longest(events: Sequence[Event], length_us: Callable[[Event], int]) -> list[Event]:
    """The events that lasted longest, in their own order."""
    places = sorted(range(len(events)), key=lambda place: -length_us(events[place]))[:MAX_EVENTS]
    return [events[place] for place in sorted(places)]


def _tiles(findings: Findings, costs: Sequence[Impact]) -> list[tuple[str, str, str]]:
    """The few figures that one looks for first: value, title, what it is."""
    facts = ("operations", "ok_operations", "records_acked", "records_read")
    operations, ok, acked, read = (words.count(findings.facts.get(name, 0)) for name in facts)
    tiles = [(operations, "operations", f"{ok} ok"), (acked, "records acked", f"{read} read")]
    tiles += [
        (
            words.micros(contrast.calm[2]),
            f"{contrast.operation} p99 outside faults",
            f"p50 {words.micros(contrast.calm[1])}",
        )
        for contrast in contrasts(findings.percentiles)
        if contrast.operation in ("fetch", "produce") and contrast.calm[2] is not None
    ]
    faults = [row for row in without_presets(findings.faults) if is_hit(row["kind"])]
    tiles.append((words.count(sum(row["hits"] for row in faults)), "fault hits", f"of {len(faults)} faults"))
    worst = max(
        (cost for cost in costs if cost.outage_us), key=lambda cost: (cost.never_ok, cost.outage_us), default=None
    )
    if worst is not None and worst.never_ok:
        tiles.append(("never", "ended well again", f"{worst.operation}, {worst.fault}"))
    elif worst is not None:
        tiles.append((words.micros(worst.outage_us), "longest outage", f"{worst.operation}, {worst.fault}"))
    without = [failover.without_us for failover in control_plane.failovers(findings)]
    if without:
        tiles.append((words.micros(max(without)), "without controller", f"worst of {len(without)}"))
    return tiles + _tiles_of_groups(findings) + transactions.tiles(findings)


def _is_idle(result: GuaranteeResult) -> bool:
    """Return whether the guarantee says nothing about this run, and need not."""
    return not result.required and result.status in ("nothing to judge", "not checked")


def _tiles_of_groups(findings: Findings) -> list[tuple[str, str, str]]:
    tiles: list[tuple[str, str, str]] = []
    if "rewinds" in findings.facts:
        back = words.count(findings.facts["records_rewound"])
        tiles.append((words.count(findings.facts["rewinds"]), "rewinds", f"{back} records back, called out of range"))
    free = [row["until_us"] - row["from_us"] for row in findings.ownerless]
    if free:
        tiles.append((words.micros(max(free)), "without an owner", "one partition, at worst"))
    copies = mirrored(findings)
    if copies:
        again, records = sum(copy.again for copy in copies), sum(copy.records for copy in copies)
        tiles.append((words.count(again), "copied twice", f"of {words.count(records)} copied"))
        worst = max(copies, key=lambda copy: copy.added_us)
        tiles.append((words.micros(worst.added_us), "lag added", f"{sum(copy.rewinds for copy in copies)} rewinds"))
    return tiles


def _identity(manifest: Manifest) -> list[tuple[str, list[tuple[str, str]]]]:
    started = datetime.fromtimestamp(manifest.start_wall_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    commit = manifest.commit + (" with uncommitted changes" if manifest.dirty else "")
    run = [
        ("run", manifest.run_id),
        ("scenario", manifest.scenario),
        ("seed", str(manifest.seed)),
        ("world", {"live": "real processes", "sim": "simulated"}.get(manifest.world, manifest.world)),
        ("target", manifest.target),
        ("session revision", manifest.revision),
        ("mutant", manifest.mutant),
        ("started", started if manifest.start_wall_us else ""),
        ("length", words.seconds(manifest.duration_us) if manifest.duration_us else ""),
        ("commit", commit),
        ("trace hash", manifest.trace_hash),
        ("clauses", ", ".join(manifest.clauses)),
    ]
    groups = [
        ("Run", [pair for pair in run if pair[1]]),
        ("Machine", [_of_machine(*pair) for pair in sorted(manifest.machine.items())]),
        ("Versions", sorted(manifest.versions.items())),
        ("Load", sorted(manifest.load.items())),
        ("Broker configuration", sorted(manifest.config.items())),
    ]
    return [(title, pairs) for title, pairs in groups if pairs]


def _of_machine(name: str, value: str) -> tuple[str, str]:
    """A number of bytes in the unit that reads best."""
    return (name.removesuffix("_bytes"), words.size(int(value))) if name.endswith("_bytes") else (name, value)


def strained(machine: Mapping[str, str]) -> str:
    """A warning if more wanted a processor than the machine had, when the run began or ended; else empty."""
    loads, cores = machine.get("load_average", "").split(), machine.get("cores", "")
    if not loads or not cores.isdigit() or float(loads[0]) <= int(cores):
        return ""
    return (
        f"The machine was busy: its load average was {loads[0]} on {cores} cores. Latencies include the wait for a "
        "processor, also behind other work than this run's."
    )


def _sides(rows: Sequence[Contrast]) -> list[tuple[str, str]]:
    """The sides of the contrast that have a figure at all, with their titles."""
    titles = {"calm": "outside faults", "faulty": "under faults"}
    return [
        (name, title)
        for name, title in titles.items()
        if any(getattr(contrast, name)[1] is not None for contrast in rows)
    ]


def _load(findings: Findings) -> dict[str, Any]:
    rows = [row for row in findings.load if row["offered"] or row["sent"]]
    sums = {name: sum(row[name] for row in findings.load) for name in ("offered", "sent", "completed", "failed")}
    lasted = max(1, len(rows))
    return {
        "rows": [(name, total, total / lasted) for name, total in sums.items()],
        "slip_us": max((row["max_slip_us"] or 0 for row in findings.load), default=None),
        "cpu_permille": max((row["cpu_permille"] for row in findings.load if row["cpu_permille"] >= 0), default=None),
        "seconds": len(rows),
    }


def _outcomes(findings: Findings) -> list[Row]:
    """Operations by kind and end, with the errors that were named. Those that did not end well come first."""
    table = Counter[tuple[str, str, str]]()
    for row in findings.throughput:
        table[row["f"], row["type"], row["error"]] += row["operations"]
    in_order = sorted(table.items(), key=lambda entry: (entry[0][1] == "ok", entry[0]))
    return [{"f": f, "type": end, "error": error, "operations": n} for (f, end, error), n in in_order]


def _broker_table(findings: Findings) -> list[Row]:
    values: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in findings.broker:
        values[row["metric"], row["node"]].append(row["value"])
    return [
        {"metric": metric, "node": node, "low": min(v), "high": max(v), "last": v[-1], "samples": len(v)}
        for (metric, node), v in sorted(values.items())
        if any(v)
    ]


_ABSENT = {
    "latency": "No latency histograms were recorded. The latency figures are exact values from the operations.",
    "load": "The workers did not record their own load. Offered and sent load are counted from the operations.",
    "broker": "Broker metrics were not sampled.",
    "trace": "No trace of the nodes was recorded, so the mechanisms' own guarantees were not checked.",
    "ends": "Partitions were not read to their end, so unread records at the end would go unnoticed.",
}
"""The note on the page if a run lacks one of these tables."""


def notes(manifest: Manifest, findings: Findings, guarantees: Sequence[GuaranteeResult]) -> list[str]:
    texts = [text for table, text in _ABSENT.items() if table not in findings.present]
    if manifest.world == "live":
        texts.append(
            "Clients, proxies and brokers shared one machine and the loopback interface. Compare the latencies "
            "with other runs on this machine, not with those of a network."
        )
        busiest = max((row["cpu_permille"] or 0 for row in findings.load), default=0)
        if busiest > 900:
            texts.append(
                f"A load worker was busy for {busiest / 10:.0f} % of a second, so it may itself have added latency."
            )
    else:
        texts.append("This run was simulated. Its times are virtual and say nothing about speed.")
    if findings.facts.get("changes") and not findings.facts.get("final_descriptions"):
        texts.append(
            "Nobody described the topics at the end, so the loss of an acknowledged change would go unnoticed."
        )
    unfinished = sum(not row["finished"] for row in findings.transfers)
    if unfinished:
        downloads = "One snapshot download" if unfinished == 1 else f"{unfinished} snapshot downloads"
        texts.append(f"{downloads} did not finish within the run.")
    if any(not row["cause"] for row in findings.failovers):
        texts.append(
            "Where a controller was lost without a known cause, its last line in the trace stands for the "
            "moment of the loss. The time without a controller is then an estimate."
        )
    if manifest.warm_up_us:
        texts.append(
            f"The first {manifest.warm_up_us / 1e6:g} s are warm-up. The latency tables and the percentile plot leave "
            "them out, and the charts over time show them."
        )
    unchecked = [guarantee.name for guarantee in guarantees if guarantee.status in ("not checked", "nothing to judge")]
    if unchecked:
        texts.append(f"These guarantees were not judged in this run: {', '.join(unchecked)}.")
    unknown = findings.facts.get("unknown_operations", 0)
    if unknown:
        operations = "One operation has" if unknown == 1 else f"{unknown:,} operations have"
        texts.append(
            f"{operations} an unknown end (a timeout or a lost connection). What was written may be there or not. "
            "Both are allowed."
        )
    if manifest.dirty:
        texts.append("The working tree had uncommitted changes, so the commit does not name exactly what ran.")
    texts.append(
        "A percentile is omitted if fewer than ten samples lie beyond it. Values from histograms are upper bounds, "
        "at most 1 % too high."
    )
    return [*manifest.notes, *texts]
