"""Verdicts on cases, and the reports about them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from crucible_kafka.clients import adapter as adapter_module
from crucible_kafka.clients.case import (
    MUST,
    SHOULD,
    CaseResult,
    ClientCase,
    ClientVerdict,
    NotShown,
    NotSupported,
    Violated,
    case,
)
from crucible_kafka.clients.cases import ORDER, UnknownCase, all_cases, chosen
from crucible_kafka.clients.client_command import ClientOptions, run
from crucible_kafka.clients.machine_wait import MachineWait
from crucible_kafka.clients.page import page_document
from crucible_kafka.clients.play import Play, at_least, one_of, play_case
from crucible_kafka.clients.protocol import AdapterInfo
from crucible_kafka.clients.report import detail_lines, json_document, junit_document, read_baseline, worse
from crucible_kafka.clients.tests.scripted_adapter import scripted

ABOUT = AdapterInfo(schema=1, name="scripted", version="1.0", features=["consumer"])


def a_case(conduct: Callable[[Play], None], **fields: Any) -> ClientCase:
    conduct.__doc__ = "The broker does nothing special."
    return case("ordinary/of-test", fields.pop("level", MUST), "a test", **fields)(conduct)


def verdict(conduct: Callable[[Play], None], way: str = "fine", **fields: Any) -> CaseResult:
    return play_case(a_case(conduct, **fields), scripted(way), ABOUT)


def violates(_: Play) -> None:
    raise Violated("data", "a record is lost")


def raises(error: Exception) -> Callable[[Play], None]:
    def conduct(_: Play) -> None:
        raise error

    return conduct


def with_fault_that_never_fires(at: Play) -> None:
    at.kafka.on("Fetch").drop_response(times=1)


def fails_before_its_fault_fires(at: Play) -> None:
    at.kafka.on("Fetch").drop_response(times=1)
    raise Violated("data", "a record is lost")


def test_verdicts_come_from_judgements() -> None:
    assert verdict(violates).verdict is ClientVerdict.FAIL
    assert verdict(violates, level=SHOULD).verdict is ClientVerdict.DIFFERS
    assert verdict(lambda _: None).verdict is ClientVerdict.PASS
    assert verdict(raises(NotSupported("it has none."))).verdict is ClientVerdict.NOT_SUPPORTED
    assert verdict(raises(NotShown("nobody came."))).verdict is ClientVerdict.NOT_SHOWN
    assert verdict(lambda _: None, needs=("transactions",)).reason == "the client lacks transactions"


@pytest.mark.live
def test_client_that_cannot_be_made_without_a_fault_shows_nothing() -> None:
    def conduct(at: Play) -> None:
        at.consumer()
        violates(at)

    result = verdict(conduct, "cannot-open")
    assert result.verdict is ClientVerdict.ADAPTER_FAILED
    assert "no such setting" in result.reason


@pytest.mark.live
def test_client_that_cannot_be_made_in_an_old_cluster_is_judged() -> None:
    def conduct(at: Play) -> None:
        at.cluster(versions="2.8")
        at.consumer()
        violates(at)

    assert verdict(conduct, "cannot-open").verdict is ClientVerdict.FAIL


def test_red_case_on_a_starved_machine_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Play, "starved", lambda _: "the suite waited for 4.0 s")
    red, green = verdict(violates), verdict(lambda _: None)
    assert (red.verdict, green.verdict) == (ClientVerdict.OUR_ERROR, ClientVerdict.PASS)
    assert (
        red.reason == "not judged, the machine was too slow: the suite waited for 4.0 s. Seen: data: a record is lost"
    )


def test_wait_for_the_machine_counts_from_half_of_the_slack_on() -> None:
    machine = MachineWait()
    machine.end()
    machine.suite_s = 2.9
    assert machine.starved() == ""
    machine.suite_s = 3.5
    assert machine.starved() == "the suite waited for 3.5 s"


@pytest.mark.parametrize(
    ("run_s", "wait_s", "words"),
    [(1, 8, ""), (2, 12, "a client waited for 4.0 s"), (4, 12, ""), (0, 0, "")],
    ids=["it waited before", "it waits", "it is busy itself", "it has ended"],
)
def test_wait_of_a_client_counts_from_its_start_on(tmp_path: Path, run_s: int, wait_s: int, words: str) -> None:
    times = tmp_path / "7" / "task" / "8" / "schedstat"
    times.parent.mkdir(parents=True)
    times.write_text("1000000000 8000000000 5\n")
    machine = MachineWait(tmp_path)
    machine.end()
    machine.add(7)
    times.write_text(f"{run_s}000000000 {wait_s}000000000 9\n")
    assert machine.starved() == words


def test_mistake_in_a_case_is_ours() -> None:
    result = verdict(raises(ValueError("no such thing")))
    assert result.verdict is ClientVerdict.OUR_ERROR
    assert "test_play.py" in result.reason


def test_judgements_say_what_was_seen_and_wanted() -> None:
    def conduct(at: Play) -> None:
        at.wire("epoch", 0, one_of(0, -1))
        at.wire("milliseconds", 10, at_least(900))

    result = verdict(conduct)
    assert result.reason == "wire: milliseconds: 10, and at least 900 is wanted"
    assert [judgement.what for judgement in result.judgements] == ["epoch", "milliseconds"]


def test_fault_that_never_fired_is_never_green() -> None:
    quiet, red = verdict(with_fault_that_never_fires), verdict(fails_before_its_fault_fires)
    assert (quiet.verdict, red.verdict) == (ClientVerdict.NOT_SHOWN, ClientVerdict.NOT_SHOWN)
    assert "never fired" in quiet.reason
    assert red.reason.endswith("And before that: data: a record is lost")
    assert not quiet.is_red(strict=False)
    assert quiet.is_red(strict=True)


def test_function_of_a_rule_that_fails_is_our_error() -> None:
    def conduct(at: Play) -> None:
        rule = at.kafka.on("Metadata").change_response(lambda body: body.nothing, times=1)
        assert rule.change is not None
        rule.change(object())

    assert verdict(conduct).verdict is ClientVerdict.OUR_ERROR


def reads_one(at: Play) -> None:
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic, 1), timeouts=0)


@pytest.mark.live
@pytest.mark.parametrize(
    ("way", "expected", "words"),
    [
        ("fine", ClientVerdict.FAIL, "progress: 1 of 1 records were not read within"),
        ("invents", ClientVerdict.FAIL, "data: the application got 'invented' at topic-1-0@0, and the log has"),
        ("exits", ClientVerdict.ADAPTER_FAILED, "The adapter exited with code 1"),
        ("garbage", ClientVerdict.ADAPTER_FAILED, "The adapter wrote a line that is no JSON object"),
    ],
)
def test_defective_clients_turn_a_case_red(
    way: str, expected: ClientVerdict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crucible_kafka.clients.application.SLACK_S", 0.3)
    monkeypatch.setattr(adapter_module, "END_S", 1.0)
    result = verdict(reads_one, way)
    assert result.verdict is expected
    assert result.reason.startswith(words)


def results() -> list[CaseResult]:
    made = a_case(lambda _: None)
    return [CaseResult(made, each, f"because of \x00 {each.value}", 0.5, (), ["0.000  poll"]) for each in ClientVerdict]


def test_reports_have_all_results() -> None:
    document = json.loads(json_document("./my adapter", ABOUT, results()))
    assert [each["verdict"] for each in document["cases"]] == [each.value for each in ClientVerdict]
    suites = ElementTree.fromstring(junit_document("own", results(), strict=False))
    (suite,) = suites
    assert suite.get("failures") == "1"
    assert suite.get("errors") == "2"
    assert suite.get("skipped") == "3"
    lines = list(detail_lines(results()[1], "./my adapter"))
    assert lines[-1].endswith("client './my adapter' --case ordinary/of-test")


def test_page_has_each_case_and_what_fails() -> None:
    found = results()
    document = page_document("own", ABOUT, found, [found[1]], 3.0)
    assert '<header class="verdict failed"' in document
    assert "1 of 7 cases count against it. The first is ordinary/of-test" in document
    assert document.count('<tr class="case"') == len(found)


def test_baseline_has_what_got_worse(tmp_path: Path) -> None:
    passed, failed, differs, *_ = results()
    file = tmp_path / "before.json"
    file.write_text(json_document("own", ABOUT, [differs]))
    before = read_baseline(file)
    assert worse(before, [failed]) == [failed]
    assert worse(before, [passed, differs]) == []
    assert worse({}, [failed]) == []


def test_cases_are_listed_by_section() -> None:
    lines: list[str] = []
    assert run(ClientOptions(None, sections=["sessions"], lists=True), lines.append) == 0
    assert lines[0].startswith("sessions/response-lost  MUST  A response with records is lost")
    assert all(each.section in ORDER for each in all_cases())
    with pytest.raises(UnknownCase, match="did you mean sessions/response-lost"):
        chosen([], ["sessions/respons-lost"])
    with pytest.raises(UnknownCase, match="did you mean sessions"):
        chosen(["session"], [])


@pytest.mark.live
@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    "each", [each for each in all_cases() if each.section in ("ordinary", "sessions")], ids=lambda each: each.id
)
def test_own_client_passes(each: ClientCase) -> None:
    from crucible_kafka.clients.adapter import adapter_info
    from crucible_kafka.clients.bundled import find

    command = find("own", lambda _: None)
    result = play_case(each, command, adapter_info(command))
    assert result.verdict in (ClientVerdict.PASS, ClientVerdict.NOT_SUPPORTED), "\n".join(detail_lines(result, "own"))


@pytest.mark.live
@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    ("mutant", "case_id", "words"),
    [
        ("session_kept_after_error", "sessions/epoch-refused", "wire: session epoch of the next Fetch"),
    ],
)
def test_client_without_a_mechanism_turns_its_case_red(mutant: str, case_id: str, words: str) -> None:
    from crucible_kafka.clients.adapter import AdapterCommand, adapter_info

    command = AdapterCommand(mutant, [sys.executable, "-m", "chaos.mutants.client_adapter", mutant])
    (chosen_case,) = chosen([], [case_id])
    result = play_case(chosen_case, command, adapter_info(command))
    assert result.verdict is ClientVerdict.FAIL, "\n".join(detail_lines(result, mutant))
    assert result.reason.startswith((words, "progress:"))
