"""Outcomes as JUnit XML, one suite for each section."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from xml.etree import ElementTree

from bench.probe.told.text import in_full, repeat_command
from bench.probe.verdict import Outcome, Verdict


def junit_document(target: str, outcomes: Sequence[Outcome], strict: bool, kafka: Mapping[str, str]) -> str:
    """What fails the run is a failure, or an error if it is ours; what does not apply, or may differ, is skipped with
    the reason. ``kafka``: what Apache Kafka answers, by the case's ID."""
    suites = ElementTree.Element("testsuites", name=f"Kafka protocol of {target}")
    for section, found in groupby(outcomes, key=lambda each: each.case.section):
        members = list(found)
        suite = ElementTree.SubElement(suites, "testsuite", name=section, tests=str(len(members)))
        suite.set("failures", str(sum(each.is_red(strict) for each in members)))
        suite.set("errors", str(sum(each.is_ours for each in members)))
        suite.set("skipped", str(sum(_is_skipped(each, strict) for each in members)))
        for each in members:
            shown = in_full(each, repeat_command(target, each.case.id), kafka.get(each.case.id, ""))
            _add(suite, each, strict, "\n".join(shown))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _is_skipped(outcome: Outcome, strict: bool) -> bool:
    return outcome.verdict is not Verdict.PASS and not outcome.is_red(strict) and not outcome.is_ours


def _add(suite: ElementTree.Element, outcome: Outcome, strict: bool, shown: str) -> None:
    name = outcome.case.id.rpartition("/")[2]
    test = ElementTree.SubElement(suite, "testcase", classname=outcome.case.section.replace("/", "."), name=name)
    test.set("time", f"{outcome.seconds:.3f}")
    message = f"{outcome.verdict.value}: {outcome.reason}"
    if outcome.is_red(strict) or outcome.is_ours:
        kind = "error" if outcome.is_ours else "failure"
        ElementTree.SubElement(test, kind, message=message).text = shown
    elif _is_skipped(outcome, strict):
        ElementTree.SubElement(test, "skipped", message=message)
