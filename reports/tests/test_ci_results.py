"""JUnit XML of several plays, and GitHub's annotations."""

from pathlib import Path
from xml.etree import ElementTree

from reports.ci_results import PlayResult, annotation, annotations, junit_document, junit_of_runs, result_of
from reports.collect import Violations
from reports.tests.test_verdict import MANIFEST, VIOLATION, findings, verdict_of
from reports.verdict import write_junit

FINE = PlayResult("01-lost-response", 2.5)
BROKEN = PlayResult("02-kill", 1.0, "FAILED with seed 7: lost-write", details="  lost-write: a\x1b[1m story")
INVALID = PlayResult("03-thin", 0.5, "INVALID with seed 1: no fault fired", is_error=True)


def test_each_result_is_a_test_case_of_one_suite() -> None:
    suite = ElementTree.fromstring(junit_document("sim", [FINE, BROKEN, INVALID]))[0]
    assert {key: suite.get(key) for key in ("name", "tests", "failures", "errors", "skipped", "time")} == {
        "name": "sim",
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
        "time": "4.000",
    }
    fine, broken, invalid = suite
    assert fine.get("name") == "01-lost-response"
    assert fine.get("time") == "2.500"
    assert len(fine) == 0
    (failure,) = broken.findall("failure")
    assert failure.get("message") == "FAILED with seed 7: lost-write"
    assert failure.text == "  lost-write: a\ufffd[1m story"
    assert [each.tag for each in invalid] == ["error"]


def test_suites_of_runs_are_in_one_document_and_a_mutant_has_one_case(tmp_path: Path) -> None:
    verdict = verdict_of(MANIFEST, findings({"poll-skip": Violations(4, (VIOLATION,))}))
    write_junit(tmp_path / "junit.xml", verdict)
    text = junit_of_runs([(result_of(verdict), tmp_path / "junit.xml"), (BROKEN, None)])
    first, second = ElementTree.fromstring(text)
    assert len(first) == len(verdict.guarantees) + 1
    assert first.findall("testcase/failure")
    assert second.get("name") == "02-kill"
    assert second.get("failures") == "1"
    assert len(second) == 1


def test_mutants_run_must_fail_only_if_it_is_to_be_killed() -> None:
    failed = verdict_of(MANIFEST, findings({"poll-skip": Violations(4, (VIOLATION,))}))
    passed = verdict_of(MANIFEST, findings())
    assert result_of(failed).problem.startswith("FAILED: ")
    assert MANIFEST.repeat_command in result_of(failed).details
    assert not result_of(failed, must_fail=True).problem
    assert not result_of(passed).problem
    assert result_of(passed, must_fail=True).problem.startswith("PASSED, but a guarantee must break: ")


def test_annotation_is_one_line_whatever_its_text_has() -> None:
    assert annotation("kill: 50%, twice", "lost 3 %\r\nagain: ./crucible sim 2") == (
        "::error title=kill%3A 50%25%2C twice::lost 3 %25%0D%0Aagain: ./crucible sim 2"
    )
    assert annotations([FINE, INVALID]) == ["::error title=03-thin::INVALID with seed 1: no fault fired"]
