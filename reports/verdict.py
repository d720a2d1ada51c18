"""The verdict, verdict.json and junit.xml."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

VERDICT_VERSION = 1


class Outcome(IntEnum):
    """The value is the process's exit code."""

    PASSED = 0
    FAILED = 1  # a guarantee was broken
    INVALID = 3  # nothing was shown: a fault never fired, the traffic was too thin, evidence is missing
    CRASHED = 4  # the suite failed, or a node failed in a way that no guarantee covers


RANK = (Outcome.PASSED, Outcome.INVALID, Outcome.FAILED, Outcome.CRASHED)
"""A crash outweighs a broken guarantee, which outweighs a run that showed nothing."""


def worst_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst outcome of several runs; PASSED if there are none."""
    return max(outcomes, key=RANK.index, default=Outcome.PASSED)


Status = Literal["holds", "broken", "not checked", "nothing to judge", "broken, not promised"]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One violation, with the place to look it up in the history. -1 and empty mean "does not apply"."""

    guarantee: str
    topic: str
    partition: int
    offset: int
    process: str
    index: int
    at_us: int
    fault: str
    """That explains it: it was active, or came before ("3.2 s after ...") or next ("0.4 s before ...")."""
    detail: str

    @property
    def fault_name(self) -> str:
        """The fault and the number of its hit, without the time between; empty if there is none."""
        return self.fault.rsplit(" after ", 1)[-1].rsplit(" before ", 1)[-1]


@dataclass(frozen=True, slots=True)
class GuaranteeResult:
    name: str
    meaning: str
    """One sentence: what would break it."""
    status: Status
    required: bool
    """A violation fails the run, and a promised guarantee without a judgement makes it INVALID."""
    evidence: int
    """How many things were looked at."""
    evidence_unit: str
    anomalies: int
    """All of them; ``examples`` holds the first."""
    reason: str = ""
    """Why it was not checked."""
    judged_by: str = "history"
    """``history`` (Spark), ``simulator``, or ``runner`` in a live run."""
    examples: tuple[Anomaly, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    scenario: str
    title: str
    seed: int
    mutant: str
    run_dir: Path
    summary: str
    """Plain English, one or two sentences."""
    reasons: tuple[str, ...]
    """Why it is not PASSED; empty if it is."""
    guarantees: tuple[GuaranteeResult, ...]
    repeat_command: str
    report: Path | None = None
    """Index.html."""
    unjudged: tuple[str, ...] = ()
    """Guarantees that the scenario promises, and that this run left unjudged."""

    @property
    def exit_code(self) -> int:
        return int(self.outcome)

    @property
    def anomalies(self) -> int:
        return sum(result.anomalies for result in self.guarantees if result.status == "broken")


def worst_exit_code(verdicts: Sequence[Verdict]) -> int:
    """The exit code of the worst of several runs."""
    return int(worst_outcome(verdict.outcome for verdict in verdicts))


def write_verdict(path: Path, verdict: Verdict) -> None:
    raw = asdict(verdict)
    raw.update(version=VERDICT_VERSION, outcome=verdict.outcome.name, exit_code=verdict.exit_code)
    path.write_text(json.dumps(raw, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")


def write_junit(path: Path, verdict: Verdict, duration_s: float = 0.0) -> None:
    """Write JUnit XML with one test case per guarantee. The case ``run`` says whether the run counts at all."""
    broken = [result for result in verdict.guarantees if result.status == "broken"]
    skipped = [result for result in verdict.guarantees if result.status not in ("holds", "broken")]
    errors = int(verdict.outcome in (Outcome.INVALID, Outcome.CRASHED))
    counts = {"tests": len(verdict.guarantees) + 1, "failures": len(broken), "errors": errors, "skipped": len(skipped)}
    name = f"{verdict.scenario} seed {verdict.seed}" + (f" mutant {verdict.mutant}" if verdict.mutant else "")
    attributes = {"name": name, "time": f"{duration_s:.3f}", **{key: str(value) for key, value in counts.items()}}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    run_case = ElementTree.SubElement(suite, "testcase", classname=verdict.scenario, name="run")
    if errors:
        message = xml_text("; ".join(verdict.reasons))
        error = ElementTree.SubElement(run_case, "error", type=verdict.outcome.name, message=message)
        error.text = f"repeat with: {verdict.repeat_command}"
    for result in verdict.guarantees:
        case = ElementTree.SubElement(suite, "testcase", classname=verdict.scenario, name=result.name)
        if result.status == "broken":
            failure = ElementTree.SubElement(case, "failure", type=result.name, message=f"{result.anomalies} anomalies")
            failure.text = xml_text("\n".join(_line(example) for example in result.examples[:20]))
        elif result.status != "holds":
            ElementTree.SubElement(case, "skipped", message=xml_text(f"{result.status}: {result.reason}"))
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _line(anomaly: Anomaly) -> str:
    place = f"{anomaly.topic}-{anomaly.partition} @{anomaly.offset}" if anomaly.topic else anomaly.process
    fault = f" [{anomaly.fault}]" if anomaly.fault else ""
    return f"{anomaly.at_us / 1e6:.3f} s {place}: {anomaly.detail}{fault}"


def xml_text(text: str) -> str:
    """Replace control characters: XML 1.0 has none, but the name of a foreign topic or client may."""
    return "".join(char if char in "\t\n" or char >= " " else "\ufffd" for char in text)
