"""Results of plays for CI systems: JUnit XML, and annotations of GitHub."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from reports.verdict import Outcome, Verdict, xml_text


@dataclass(frozen=True, slots=True)
class PlayResult:
    """The result of one play, or of a search with one scenario."""

    name: str
    """Name of the scenario, with its mutant."""
    seconds: float = 0.0
    problem: str = ""
    """One sentence that describes the problem; empty if there is none."""
    is_error: bool = False
    """Whether the play was INVALID or crashed, and so shows nothing about the guarantees."""
    details: str = ""
    """Lines with the violations, and with the command that repeats the play."""


def junit_document(suite_name: str, results: Sequence[PlayResult]) -> str:
    """Return JUnit XML with one suite, and a test case for each result."""
    suites = ElementTree.Element("testsuites")
    _add_suite(suites, suite_name, results)
    return _text(suites)


def junit_of_runs(runs: Iterable[tuple[PlayResult, Path | None]]) -> str:
    """Return JUnit XML with the suites of each run's own file. A run without a file is a suite with one test case."""
    suites = ElementTree.Element("testsuites")
    for result, file in runs:
        if file is None:
            _add_suite(suites, result.name, [result])
        else:
            suites.extend(ElementTree.parse(file).getroot())
    return _text(suites)


def _add_suite(suites: ElementTree.Element, name: str, results: Sequence[PlayResult]) -> None:
    suite = ElementTree.SubElement(suites, "testsuite", name=name, tests=str(len(results)))
    suite.set("failures", str(sum(bool(result.problem) and not result.is_error for result in results)))
    suite.set("errors", str(sum(result.is_error for result in results)))
    suite.set("skipped", "0")
    suite.set("time", f"{sum(result.seconds for result in results):.3f}")
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=xml_text(result.name))
        case.set("time", f"{result.seconds:.3f}")
        if result.problem:
            kind = "error" if result.is_error else "failure"
            ElementTree.SubElement(case, kind, message=xml_text(result.problem)).text = xml_text(result.details)


def _text(suites: ElementTree.Element) -> str:
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def annotation(title: str, message: str) -> str:
    """Return the line with which a step of GitHub Actions shows an error at the commit and on the run's page."""
    escaped_title = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::error title={escaped_title}::{_escaped(message)}"


def annotations(results: Iterable[PlayResult]) -> list[str]:
    """Return a line for each result with a problem."""
    return [
        annotation(result.name, f"{result.problem}\n{result.details}".strip()) for result in results if result.problem
    ]


def result_of(verdict: Verdict, must_fail: bool = False) -> PlayResult:
    """Return the result of a run, which must pass, or with a mutant may have to break a guarantee."""
    name = verdict.scenario + (f" with {verdict.mutant}" if verdict.mutant else "")
    if verdict.outcome is (Outcome.FAILED if must_fail else Outcome.PASSED):
        return PlayResult(name)
    problem = f"{verdict.outcome.name}{', but a guarantee must break' if must_fail else ''}: {verdict.summary}"
    details = "\n".join([*verdict.reasons, f"repeat with: {verdict.repeat_command}"])
    is_error = verdict.outcome in (Outcome.INVALID, Outcome.CRASHED)
    return PlayResult(name, problem=problem, is_error=is_error, details=details)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
