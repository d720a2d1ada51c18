"""Reports of results: lines for people, JSON and JUnit XML."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from crucible_kafka.clients.case import CaseResult, ClientCase, ClientVerdict
from crucible_kafka.clients.protocol import AdapterInfo

PROGRAM: Final = "./crucible" if (Path(__file__).resolve().parents[2] / "crucible").is_file() else "crucible"
MARKS: Final = {
    ClientVerdict.PASS: "ok  ",
    ClientVerdict.FAIL: "FAIL",
    ClientVerdict.DIFFERS: "diff",
    ClientVerdict.NOT_SUPPORTED: "n/a ",
    ClientVerdict.NOT_SHOWN: "?   ",
    ClientVerdict.ADAPTER_FAILED: "BAD ",
    ClientVerdict.OUR_ERROR: "OURS",
}
_CONTROL: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32)], "?")
"""Characters that XML does not have."""


def case_line(case: ClientCase) -> str:
    """Return a case in one line, for --list."""
    return f"{case.id}  {case.level.value}  {case.words}"


def result_line(result: CaseResult) -> str:
    why = f": {result.reason}" if result.reason else ""
    return f"{MARKS[result.verdict]} {result.case.id} ({result.seconds:.1f} s){why}"


def repeat_command(adapter: str, case_id: str) -> str:
    """Return the command that plays the case again."""
    words = f"'{adapter}'" if " " in adapter else adapter
    return f"{PROGRAM} client {words} --case {case_id}"


def detail_lines(result: CaseResult, adapter: str) -> Iterator[str]:
    """Yield all about one result: what the broker does and why, what was judged, the conversation, and the command that
    repeats it."""
    case = result.case
    yield f"{MARKS[result.verdict].strip()} {case.id} ({result.verdict.value}, {result.seconds:.2f} s)"
    yield f"  {case.level.value}: {case.words}"
    yield f"  source: {case.source}"
    if result.reason:
        yield f"  {result.reason}"
    for judgement in result.judgements:
        yield f"  judged {judgement.kind}: {judgement.what}: {judgement.seen} (wanted: {judgement.wanted})"
    for line in result.conversation:
        yield f"  {line}"
    yield f"  again: {repeat_command(adapter, case.id)}"


def section_lines(results: Sequence[CaseResult]) -> Iterator[str]:
    """Yield the numbers of each section."""
    for section, members in groupby(results, key=lambda result: result.case.section):
        yield f"  {section:<13} {counts(list(members))}"


def counts(results: Sequence[CaseResult]) -> str:
    counted = Counter(result.verdict for result in results)
    return ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in ClientVerdict if counted[verdict])


def summary(about: AdapterInfo, results: Sequence[CaseResult], seconds: float) -> str:
    return f"{about.name} {about.version}: {len(results)} cases in {seconds:.0f} s: {counts(results)}"


def json_document(adapter: str, about: AdapterInfo, results: Sequence[CaseResult]) -> str:
    document = {
        "adapter": adapter,
        "client": {"name": about.name, "version": about.version, "language": about.language},
        "features": sorted(about.features),
        "cases": [_case(result, adapter) for result in results],
    }
    return json.dumps(document, indent=1) + "\n"


def _case(result: CaseResult, adapter: str) -> dict[str, object]:
    case = result.case
    return {
        "id": case.id,
        "verdict": result.verdict.value,
        "reason": result.reason,
        "level": case.level.value,
        "words": case.words,
        "source": case.source,
        "needs": list(case.needs),
        "seconds": round(result.seconds, 3),
        "judgements": [
            {"kind": judgement.kind, "what": judgement.what, "seen": judgement.seen, "wanted": judgement.wanted}
            for judgement in result.judgements
        ],
        "conversation": list(result.conversation),
        "again": repeat_command(adapter, case.id),
    }


def junit_document(adapter: str, results: Sequence[CaseResult], strict: bool) -> str:
    """Return JUnit XML. What fails the run is a failure, or an error if it is the adapter's or ours; what does not
    apply, may differ, or was not shown, is skipped with the reason."""
    suites = ElementTree.Element("testsuites", name=f"Kafka client {adapter}")
    for section, found in groupby(results, key=lambda result: result.case.section):
        members = list(found)
        suite = ElementTree.SubElement(suites, "testsuite", name=section, tests=str(len(members)))
        kinds = Counter(_junit_kind(member, strict) for member in members)
        for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(kinds[kind]))
        for member in members:
            test = ElementTree.SubElement(suite, "testcase", classname=section, name=member.case.id.partition("/")[2])
            test.set("time", f"{member.seconds:.3f}")
            if kind := _junit_kind(member, strict):
                message = f"{member.verdict.value}: {member.reason}".translate(_CONTROL)
                entry = ElementTree.SubElement(test, kind, message=message)
                if kind != "skipped":
                    entry.text = "\n".join(detail_lines(member, adapter)).translate(_CONTROL)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _junit_kind(result: CaseResult, strict: bool) -> str:
    if result.verdict in (ClientVerdict.ADAPTER_FAILED, ClientVerdict.OUR_ERROR):
        return "error"
    if result.is_red(strict):
        return "failure"
    return "" if result.verdict is ClientVerdict.PASS else "skipped"


# Baselines

RANKS: Final[Mapping[ClientVerdict, int]] = {
    ClientVerdict.PASS: 0,
    ClientVerdict.NOT_SUPPORTED: 1,
    ClientVerdict.DIFFERS: 2,
    ClientVerdict.FAIL: 3,
    ClientVerdict.ADAPTER_FAILED: 4,
}
"""Verdicts from good to bad. Cases that showed nothing, or that failed by themselves, are not compared."""


class NoBaseline(Exception):  # noqa: N818
    """The file was not written by --json."""


def read_baseline(path: Path) -> dict[str, ClientVerdict]:
    """Return the verdicts of an older run, by the case's ID. Raise NoBaseline."""
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        return {str(case["id"]): ClientVerdict(case["verdict"]) for case in cases}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoBaseline(f"{path} is no baseline, which --json writes: {error}.") from None


def worse(before: Mapping[str, ClientVerdict], results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the results that are worse than before. Cases that are new are none of them."""
    return [
        result
        for result in results
        if RANKS.get(result.verdict, -1) > RANKS.get(before.get(result.case.id, result.verdict), len(RANKS))
    ]
