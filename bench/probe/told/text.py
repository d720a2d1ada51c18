"""Outcomes as text for people."""

from collections import Counter
from collections.abc import Iterator, Sequence

from bench.probe.case import Case, Versions
from bench.probe.verdict import Outcome, Verdict
from reference_broker.wire.apis import api_name

MARKS = {
    Verdict.PASS: "ok  ",
    Verdict.FAIL: "FAIL",
    Verdict.DIFFERS: "diff",
    Verdict.NOT_ADVERTISED: "n/a ",
    Verdict.INCONSISTENT: "BAD ",
    Verdict.NOT_PLAYED: "-   ",
    Verdict.OUR_ERROR: "OURS",
}


def case_line(case: Case) -> str:
    """A case in one line, for --dry-run."""
    return f"{case.id}  {case.level.value}  {case.words}"


def outcome_line(outcome: Outcome) -> str:
    """An outcome in one line."""
    why = f": {outcome.reason}" if outcome.reason else ""
    return f"{MARKS[outcome.verdict]} {outcome.case.id}{why}"


def in_full(outcome: Outcome, repeat: str, kafka: str) -> Iterator[str]:
    """All about one outcome: what must hold and why, what was sent, what came back, what Apache Kafka answers, and
    the command that repeats it."""
    case = outcome.case
    yield f"{MARKS[outcome.verdict].strip()} {case.id} ({outcome.verdict.value}, {outcome.seconds:.2f} s)"
    yield f"  {case.level.value}: {case.words}"
    yield f"  source: {case.source}, since Apache Kafka {case.since}; needs {needs(case)}"
    if outcome.reason:
        yield f"  {outcome.reason}"
    for observation in outcome.observations:
        yield f"  looked at: {observation.what}: {observation.seen} (wanted: {observation.wanted})"
    if kafka:
        yield f"  Apache Kafka: {kafka}"
    for each in outcome.lines:
        yield f"  {each.connection} {each.direction} {each.words}"
        if each.frame:
            yield f"      {each.hex}"
    yield f"  again: {repeat}"


def repeat_command(target: str, case_id: str) -> str:
    """The command that plays the case again."""
    return f"./crucible probe {target} --case {case_id}"


def needs(case: Case) -> str:
    return ", ".join(f"{api_name(key)}{_range(versions)}" for key, versions in case.needs.items()) or "nothing"


def _range(versions: Versions) -> str:
    low, high = versions
    if high == 0x7FFF:
        return f" {low}+" if low else ""
    return f" {low}-{high}" if low != high else f" {low}"


def outcome_summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    counted = Counter(each.verdict for each in outcomes)
    parts = [f"{counted[verdict]} {verdict.value}" for verdict in Verdict if counted[verdict]]
    if ends := sum(each.ended for each in outcomes):
        parts.append(f"the broker ended {ends} time{'s' * (ends > 1)}")
    return f"{len(outcomes)} cases in {seconds:.1f} s: {', '.join(parts)}"
