"""Derive the verdict from findings, without Spark.

A verdict requires evidence: a guarantee without evidence never holds.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reports.collect import Findings
from reports.guarantees import GUARANTEES, SeenFrom
from reports.job_rows import Rows, without_presets
from reports.jobs.guarantee_job import GuaranteeJob, guarantee_jobs
from reports.manifest import CheckResult, Manifest, canonical_guarantee
from reports.rows import is_hit
from reports.schema import stored_files
from reports.verdict import GuaranteeResult, Outcome, Status, Verdict

LIMITED_SHARE = 0.1
MIN_LIMITED_SECONDS = 3
"""A worker that limited the load for longer than both of these makes the run INVALID."""
UNJUDGED: Final[tuple[Status, ...]] = ("not checked", "nothing to judge")


def decide(manifest: Manifest, findings: Findings, run_dir: Path) -> Verdict:
    """Return the verdict. A crash has precedence over violated guarantees, because it truncates the history, and
    violated guarantees over missing evidence. An incomplete history is INVALID, since missing rows may look like
    violations."""
    guarantees = guarantee_results(manifest, findings)
    broken = [result for result in guarantees if result.status == "broken"]
    altered = _altered_files(manifest, run_dir)
    invalid = [*altered, *missing_evidence(manifest, findings), *_unjudged(manifest, guarantees)]
    if manifest.crash:
        outcome, reasons = Outcome.CRASHED, [manifest.crash]
    elif broken and not altered:
        outcome = Outcome.FAILED
        reasons = [f"{result.name} was broken {_times(result.anomalies)}. {result.meaning}" for result in broken]
    elif invalid:
        outcome, reasons = Outcome.INVALID, []
    else:
        outcome, reasons = Outcome.PASSED, []
    return Verdict(
        outcome=outcome,
        scenario=manifest.scenario,
        title=manifest.title,
        seed=manifest.seed,
        mutant=manifest.mutant,
        run_dir=run_dir,
        summary=_summary(outcome, manifest, findings, guarantees, invalid),
        reasons=(*reasons, *invalid),
        guarantees=tuple(guarantees),
        repeat_command=manifest.repeat_command,
        unjudged=tuple(
            result.name for result in guarantees if result.name in manifest.promised() and _is_unjudged(result)
        ),
    )


def _altered_files(manifest: Manifest, run_dir: Path) -> list[str]:
    """Return a sentence if the history is not the one that the run wrote. Missing operations violate nothing, and their
    records would seem to have no writer."""
    if not manifest.history_files:
        return []
    stored = stored_files(run_dir)
    altered = [
        f"{path} {'is missing' if path not in stored else f'has {stored[path]:,} of {size:,} bytes'}"
        for path, size in sorted(manifest.history_files.items())
        if stored.get(path) != size
    ]
    altered += [f"{path} was added" for path in sorted(stored.keys() - manifest.history_files.keys())]
    if not altered:
        return []
    more = f", and {len(altered) - 1:,} more files differ" if len(altered) > 1 else ""
    return [f"The history is not whole: {altered[0]}{more}. Restore it from a copy, or play the run again."]


def missing_evidence(manifest: Manifest, findings: Findings) -> list[str]:
    """Return the reasons why the run proves nothing, one sentence each. The list is empty for a valid run."""
    if "operations" not in findings.present:
        return ["The run left no history of client operations: there is no file history/operations*.parquet."]
    expected = manifest.expectations
    fired = Counter[str]()
    for row in findings.faults:
        if is_hit(row["kind"]):
            fired[row["name"]] += row["hits"]
    reasons = []
    for name, times in Counter(expected.faults).items():
        if fired[name] < times:
            how_often = "never fired" if not fired[name] else f"fired {fired[name]} of {times} times"
            reasons.append(f"The fault {name!r} {how_often}.")
    if manifest.mutant and manifest.mutant_calls == 0:
        reasons.append(f"The code that mutant {manifest.mutant!r} replaces was never called.")
    fetches, acked = findings.facts.get("fetches", 0), findings.facts.get("records_acked", 0)
    if fetches < expected.min_fetches:
        reasons.append(
            f"The traffic was too thin: {fetches:,} successful fetches of {expected.min_fetches:,} that are needed."
        )
    if acked < expected.min_acked:
        reasons.append(
            f"The traffic was too thin: {acked:,} acknowledged records of {expected.min_acked:,} that are needed."
        )
    rewinds = findings.facts.get("rewinds", 0)
    if rewinds < expected.min_rewinds:
        reasons.append(f"Clients rewound {rewinds:,} times, and {expected.min_rewinds:,} are needed.")
    slip_us = max((row["max_slip_us"] or 0 for row in findings.load), default=0)
    if expected.max_schedule_slip_ms and slip_us > expected.max_schedule_slip_ms * 1_000:
        reasons.append(
            f"The load generator fell {slip_us / 1e3:,.0f} ms behind its schedule, "
            f"and {expected.max_schedule_slip_ms:,} ms are allowed."
        )
    if not expected.faults:
        reasons += generator_limits(findings)
    if unread := findings.facts.get("unended_partitions", 0):
        reasons.append(f"{unread:,} written partitions were not read to their end.")
    return reasons


def generator_limits(findings: Findings) -> list[str]:
    """Return a sentence for each worker that limited the load. Such a load shows nothing about the broker.

    A run with faults is about guarantees, which a late generator does not violate. Its page only shows these sentences
    beside the latencies, and the schedule's slip has a limit of its own.
    """
    reasons = []
    for row in findings.generator:
        limited, seconds = int(row["limited_seconds"]), int(row["seconds"])
        if limited >= MIN_LIMITED_SECONDS and limited > seconds * LIMITED_SHARE:
            reasons.append(
                f"The load generator was the limit, not the broker: {row['worker']} had no processor time left and ran "
                f"late in {limited} of {seconds} seconds (by up to {row['worst_lag_us'] / 1e3:,.0f} ms). "
                "Use more workers or less load."
            )
    return reasons


def guarantee_results(manifest: Manifest, findings: Findings) -> list[GuaranteeResult]:
    checks = {canonical_guarantee(check.guarantee): check for check in manifest.checks}
    results = [
        _by_history(job, manifest, findings)
        for job in guarantee_jobs()
        if job.guarantee.seen_from is not SeenFrom.INSIDE or not job.missing(findings.present)
    ]
    known = {result.name for result in results}
    results += [_by_check(name, check, manifest) for name, check in checks.items() if name not in known]
    unknown = sorted(manifest.promised() - known - set(checks))
    results += [_unknown(name, manifest) for name in unknown]
    return [_joined(result, checks.get(result.name), manifest) for result in results]


def _is_due(name: str, manifest: Manifest) -> bool:
    """Return whether a violation of the guarantee fails the run: the scenario promises it or promises none, or it is
    always due."""
    promised = manifest.promised()
    return not promised or name in promised or (name in GUARANTEES and GUARANTEES[name].always)


def _is_required(name: str, status: Status, manifest: Manifest, job: GuaranteeJob | None = None) -> bool:
    """Return ``GuaranteeResult.required``: whether the guarantee is due, and, if it was not judged, whether this run
    should have made that possible. ``job``: the job of the history, if it has one."""
    if status not in UNJUDGED:
        return _is_due(name, manifest)
    if job is None:
        # A live run need not judge the simulator's invariants.
        return _is_due(name, manifest) and (status == "nothing to judge" or manifest.world != "live")
    if not manifest.promised():
        return False
    exercised = not job.about or any(clause in job.about for clause in manifest.clauses)
    return _is_due(name, manifest) and (status == "not checked" or exercised)


def _by_history(job: GuaranteeJob, manifest: Manifest, findings: Findings) -> GuaranteeResult:
    missing = job.missing(findings.present)
    evidence, violations = findings.facts.get(job.evidence, 0), findings.found[job.name]
    open_partitions = findings.facts.get("unended_partitions", 0) if job.reads_to_end else 0
    status: Status
    reason = ""
    if missing:
        status, reason = "not checked", f"The run left no {_listed(missing)} table."
    elif violations.total:
        status = "broken" if _is_due(job.name, manifest) else "broken, not promised"
    elif open_partitions:
        status, reason = "not checked", f"{open_partitions} written partitions were not read to their end."
    elif not evidence:
        status, reason = "nothing to judge", f"There were no {job.unit}."
    else:
        status = "holds"
    return GuaranteeResult(
        name=job.name,
        meaning=job.guarantee.violation,
        status=status,
        required=_is_required(job.name, status, manifest, job),
        evidence=0 if missing else evidence,
        evidence_unit=job.unit,
        anomalies=0 if missing else violations.total,
        reason=reason,
        examples=() if missing else violations.examples,
    )


def _by_check(name: str, check: CheckResult, manifest: Manifest) -> GuaranteeResult:
    status: Status = "holds" if check.holds else ("broken" if _is_due(name, manifest) else "broken, not promised")
    if check.holds and check.evidence == 0:
        status = "nothing to judge"
    return GuaranteeResult(
        name=name,
        meaning=check.detail or _violation(name),
        status=status,
        required=_is_required(name, status, manifest),
        evidence=check.evidence,
        evidence_unit="evaluations",
        anomalies=int(not check.holds),
        reason="It was never evaluated." if status == "nothing to judge" else "",
        judged_by="simulator" if manifest.world == "sim" else "runner",
    )


def _unknown(name: str, manifest: Manifest) -> GuaranteeResult:
    """Return the result of a promised guarantee that neither a job nor a check has judged."""
    reason = "The scenario promises it, but neither the history nor the simulator can judge it in this run."
    if manifest.world == "live":
        reason = "The simulator judges it inside the nodes after every event; a live run leaves nothing to judge it by."
    return GuaranteeResult(
        name=name,
        meaning=_violation(name),
        status="not checked",
        required=_is_required(name, "not checked", manifest),
        evidence=0,
        evidence_unit="",
        anomalies=0,
        reason=reason,
    )


def _violation(name: str) -> str:
    return GUARANTEES[name].violation if name in GUARANTEES else "This version knows no guarantee of this name."


def _joined(result: GuaranteeResult, check: CheckResult | None, manifest: Manifest) -> GuaranteeResult:
    """Combine the results of the job and of the simulator. A violation that either of them found counts."""
    if check is None or result.judged_by != "history":
        return result
    other = _by_check(result.name, check, manifest)
    if result.status in ("holds", "broken", "broken, not promised") and other.status != "broken":
        return result
    return result if result.status == "broken" or other.status == "nothing to judge" else other


def _unjudged(manifest: Manifest, guarantees: Sequence[GuaranteeResult]) -> list[str]:
    """Return a sentence for each guarantee that the scenario promises and that could not be judged."""
    promised = manifest.promised()
    return [
        f"{result.name} is promised but could not be judged: {result.reason}"
        for result in guarantees
        if result.name in promised and result.required and _is_unjudged(result)
    ]


def _is_unjudged(result: GuaranteeResult) -> bool:
    return result.status in UNJUDGED


def _summary(
    outcome: Outcome,
    manifest: Manifest,
    findings: Findings,
    guarantees: Sequence[GuaranteeResult],
    invalid: Sequence[str],
) -> str:
    numbers = findings.facts
    faults = [row for row in without_presets(findings.faults) if is_hit(row["kind"])]
    hits = sum(row["hits"] for row in faults)
    did = (
        f"{numbers.get('operations', 0):,} client operations, {numbers.get('records_acked', 0):,} acknowledged and "
        f"{numbers.get('records_read', 0):,} read records"
    )
    faced = (
        f"{len(faults)} fault{'s' * (len(faults) != 1)} with {hits:,} hit{'s' * (hits != 1)}" if faults else "no fault"
    )
    planted = f" Mutant {manifest.mutant} was planted, so a red verdict is right." if manifest.mutant else ""
    holding = sum(result.status == "holds" for result in guarantees)
    if outcome is Outcome.PASSED:
        promised = [result for result in guarantees if result.name in manifest.promised()]
        unjudged = [result.name for result in promised if _is_unjudged(result)]
        left = f" {len(unjudged)} of {len(promised)} promised guarantees {'was' if len(unjudged) == 1 else 'were'} not"
        gaps = f"{left} judged here: {_listed(unjudged)}." if unjudged else ""
        held = f"Every guarantee that could be judged held ({holding} of them)"
        return f"{held} over {did}, under {faced}.{gaps}{planted}"
    if outcome is Outcome.FAILED:
        broken = [result for result in guarantees if result.status == "broken"]
        names = _listed([result.name for result in broken]) + (" was" if len(broken) == 1 else " were")
        total = _times(sum(result.anomalies for result in broken))
        return f"{_headline(broken, findings)} {names} broken, {total} in {did}, under {faced}.{planted}"
    if outcome is Outcome.INVALID:
        return f"This run proves nothing either way. {invalid[0]}{planted}"
    return f"The run did not come to its end. {manifest.crash}{planted}"


LOSSES = ("lost-write", "unseen")
"""The guarantees that are violated by the loss of an acknowledged record."""


def _headline(broken: Sequence[GuaranteeResult], findings: Findings) -> str:
    """Return a sentence about what was lost, or else about the first violation."""
    losses = [result for result in broken if result.name in LOSSES and result.examples]
    if losses and findings.losses:
        return _lost(losses, findings.losses)
    first = min(broken, key=lambda result: min((example.at_us for example in result.examples), default=0))
    meaning = first.meaning.removesuffix(".")
    if not first.examples:
        return f"{meaning}."
    seen = min(first.examples, key=lambda result: result.at_us)
    return f"{meaning}, first at {seen.at_us / 1e6:.3f} s{_during(seen.fault)}: {seen.detail}"


def _lost(broken: Sequence[GuaranteeResult], losses: Rows) -> str:
    first = min((example for one in broken for example in one.examples), key=lambda one: one.at_us)
    records = sum(row["records"] for row in losses)
    topics = sorted({str(row["topic"]) for row in losses})
    where = f"topic{'s' * (len(topics) > 1)} {_listed(topics)}"
    one = records == 1
    is_later = " before " in first.fault or first.fault == first.fault_name
    if all(row["is_gone"] for row in losses):
        gone = f"{'does' if one else 'do'} not exist any more"
        if first.fault and is_later:
            text = f"{records:,} record{'s' * (not one)} of {where} acknowledged before {first.fault_name} {gone}"
        else:
            text = f"{records:,} acknowledged record{'s' * (not one)} of {where} {gone}"
    else:
        text = f"{records:,} acknowledged record{'s' * (not one)} of {where} {'is' if one else 'are'} lost"
        text += f", the first acknowledged at {first.at_us / 1e6:.3f} s{_during(first.fault)}"
    return f"{text}."


def _during(fault: str) -> str:
    if not fault:
        return ""
    return f", {fault}" if " after " in fault or " before " in fault else f", during {fault}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
