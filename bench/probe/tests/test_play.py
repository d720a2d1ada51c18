"""Verdicts about servers that do not respond, and the reports about them."""

import json
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

from bench.probe.broker import Address, NotKafka, ProbedBroker, is_loopback, meet
from bench.probe.case import CaseOutcome, CaseVerdict, Level, ProbeCase, Unexpected, case
from bench.probe.cases.sessions import AT_ONCE, _pipelined
from bench.probe.comparison import NoBaseline, first_difference, read_baseline, worse
from bench.probe.context import Belongings, ByKey, ProbeContext, remove, single
from bench.probe.conversation import RECEIVED, Line
from bench.probe.play import play, play_one
from bench.probe.probe_command import FAILED, ProbeOptions, UsageError, address_of, run, target
from bench.probe.reporters import STYLE, json_document, junit_document, page_document
from bench.probe.tests.scripted_server import serving
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import empty_response

KEY = int(ApiKey.LIST_GROUPS)


@case("handshake/of-test", "a test", {KEY: (0, 0)}, since="0.9", limit_s=0.3)
def lists_groups(at: ProbeContext) -> None:
    """A response has no error."""
    at.expect("error code", at.call(KEY, {}).error_code, ErrorCode.none)


@case("handshake/of-test", "a test", {KEY: (0, 0)}, since="0.9", level=Level.SHOULD)
def may_differ(at: ProbeContext) -> None:
    """One is two."""
    at.expect("one", 1, 2)


@case("handshake/of-test", "a test", {}, since="0.9")
def stumbles(at: ProbeContext) -> None:
    """An empty list has a first item."""
    at.expect("first item", at.names[0], "")


@case("handshake/of-test", "a test", {}, since="0.9", hostile=True)
def harms(at: ProbeContext) -> None:
    """A case that is not played."""
    at.connect()


def _broker(address: Address) -> ProbedBroker:
    return ProbedBroker(address, 0, address, address, {0: address}, {KEY: (0, 3)})


def _verdict(played: ProbeCase, address: Address) -> CaseOutcome:
    return play_one(_broker(address), played, Belongings())


def test_silence_is_inconsistent() -> None:
    with serving(lambda _: time.sleep(0.6)) as address:
        outcome = _verdict(lists_groups, address)
    assert (outcome.verdict, outcome.reason) == (
        CaseVerdict.INCONSISTENT,
        "the broker does not respond to ListGroups 0",
    )


def test_closed_connection_is_inconsistent() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1024)

    with serving(serve) as address:
        outcome = _verdict(lists_groups, address)
    assert outcome.verdict is CaseVerdict.INCONSISTENT
    assert "closed the connection instead of responding to ListGroups 0" in outcome.reason


@pytest.mark.parametrize("frame", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x05\0\0\0\x01\x09"])
def test_garbage_is_inconsistent(frame: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(frame)
        connection.recv(1024)

    with serving(serve) as address:
        outcome = _verdict(lists_groups, address)
    assert outcome.verdict is CaseVerdict.INCONSISTENT, outcome.reason
    assert outcome.reason.startswith("the response to ListGroups 0")


def _responding_with(code: ErrorCode) -> CaseOutcome:
    def serve(connection: socket.socket) -> None:
        connection.recv(1024)
        body = int(code).to_bytes(2, "big", signed=True) + b"\0\0\0\0"
        connection.sendall(b"\0\0\0\x0a\0\0\0\x01" + body)
        connection.recv(1024)

    with serving(serve) as address:
        return _verdict(lists_groups, address)


def test_right_response_passes_and_a_wrong_one_fails() -> None:
    assert _responding_with(ErrorCode.none).verdict is CaseVerdict.PASS
    failed = _responding_with(ErrorCode.coordinator_not_available)
    assert (failed.verdict, failed.is_red(False)) == (CaseVerdict.FAIL, True)
    assert failed.reason == "error code is COORDINATOR_NOT_AVAILABLE, not NONE"
    assert failed.decided_by == "error code: COORDINATOR_NOT_AVAILABLE"


def test_advertised_version_that_is_refused_is_inconsistent() -> None:
    assert _responding_with(ErrorCode.unsupported_version).verdict is CaseVerdict.INCONSISTENT


def test_unadvertised_api_is_not_failure() -> None:
    stranger = ProbedBroker(("127.0.0.1", 1), 0, ("127.0.0.1", 1), ("127.0.0.1", 1), {}, {})
    outcome = play_one(stranger, lists_groups, Belongings())
    assert (outcome.verdict, outcome.is_red(True)) == (CaseVerdict.NOT_ADVERTISED, False)


def test_should_is_red_only_if_strict() -> None:
    outcome = _verdict(may_differ, ("127.0.0.1", 1))
    assert outcome.verdict is CaseVerdict.DIFFERS
    assert (outcome.is_red(False), outcome.is_red(True)) == (False, True)


def test_case_that_stumbles_is_our_error_and_none_of_the_broker() -> None:
    outcome = _verdict(stumbles, ("127.0.0.1", 1))
    assert outcome.verdict == CaseVerdict.OUR_ERROR
    assert not outcome.is_red(True)
    assert outcome.is_ours
    assert re.fullmatch(r"the case stumbles: IndexError: .*, test_play.py:\d+", outcome.reason)


def test_run_in_which_a_case_stumbles_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.probe.probe_command.chosen", lambda *_: (stumbles,))
    monkeypatch.setattr("bench.probe.probe_command.meet", _broker)
    monkeypatch.setattr("bench.probe.broker.meet", _broker)
    said: list[str] = []
    assert run(ProbeOptions("127.0.0.1:1"), said.append) == FAILED
    assert "1 our error" in said[-1]
    assert not [each for each in said if each.startswith("::")]
    assert run(ProbeOptions("127.0.0.1:1", annotates=True), said.append) == FAILED
    assert said[-1].startswith(f"::error title={stumbles.id}::our error: the case stumbles: IndexError")
    assert said[-1].endswith(f"%0Aagain: ./crucible probe 127.0.0.1:1 --case {stumbles.id}")


@pytest.mark.parametrize("count", [0, 2])
def test_response_without_expected_field_fails(count: int) -> None:
    response = SimpleNamespace(topics=[SimpleNamespace(partitions=[None] * count)])

    @case("handshake/of-test", "a test", {}, since="0.9")
    def looks(_: ProbeContext) -> None:
        """There is one partition."""
        single(response, "topics", "partitions")

    outcome = _verdict(looks, ("127.0.0.1", 1))
    assert (outcome.verdict, outcome.reason) == (
        CaseVerdict.FAIL,
        f"partitions of the response has {count} entries, not one",
    )


def test_response_without_a_requested_key_fails() -> None:
    with pytest.raises(Unexpected, match="the response has nothing for 1"):
        ByKey({0: "there"})[1]


def test_hostile_cases_are_for_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.probe.play.is_loopback", lambda _: False)
    (outcome,) = play(_broker(("127.0.0.1", 1)), [harms])
    assert outcome.verdict is CaseVerdict.NOT_PLAYED


def test_loopback_is_known() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("a..b")
    assert not is_loopback("192.0.2.1")


def test_target_that_is_no_broker_is_one_sentence() -> None:
    with serving(lambda _: None) as address, pytest.raises(NotKafka, match="does not respond like a Kafka"):
        meet(address)
    with pytest.raises(NotKafka, match=r"a\.\.b:9092 accepts no connection"):
        meet(("a..b", 9092))


def test_broker_that_runs_already_gets_no_settings() -> None:
    with pytest.raises(UsageError, match="leave --config out"), target("127.0.0.1:9092", {"log.dirs": "here"}):
        pass


def test_web_server_is_reported_at_once() -> None:
    def serve(connection: socket.socket) -> None:
        while request := connection.recv(4096):
            if request.startswith(b"GET"):
                connection.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")

    with serving(serve) as (host, port), pytest.raises(NotKafka, match=f"at {host}:{port} speaks HTTP"):
        run(ProbeOptions(f"{host}:{port}"), print)


@pytest.mark.parametrize(
    "text", ["", "localhost", "localhost:", ":9092", "localhost:x", "localhost:70000", "localhost:²"]
)
def test_target_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(UsageError):
        address_of(text)
    assert address_of("[::1]:9092") == ("::1", 9092)


def test_target_may_be_a_file_with_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hers.toml").write_text('title = "Hers"\naddresses = ["127.0.0.1:9092"]\n')
    monkeypatch.chdir(tmp_path)
    for text in ("hers.toml", "./hers.toml", str(tmp_path / "hers.toml")):
        with target(text) as found:
            assert found.address == ("127.0.0.1", 9092)


def test_target_that_is_none_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"'x/y' is no target: give HOST:PORT"), target("x/y"):
        pass


def test_file_that_cannot_be_written_is_reported_before_any_case_is_played(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--json .*: No such file"):
        run(ProbeOptions("127.0.0.1:1", json=tmp_path / "missing" / "out.json"), print)
    with pytest.raises(UsageError, match=r"--page .*: Is a directory"):
        run(ProbeOptions("127.0.0.1:1", page=tmp_path), print)


def test_topic_that_the_broker_does_not_delete_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"made": ErrorCode.none, "never-made": ErrorCode(3), "kept": ErrorCode.topic_authorization_failed}
    found = [SimpleNamespace(name=name, error_code=code) for name, code in codes.items()]
    monkeypatch.setattr("bench.probe.context.Conversation.__post_init__", lambda _: None)
    monkeypatch.setattr("bench.probe.context.Conversation.close", lambda _: None)
    monkeypatch.setattr("bench.probe.context.Conversation.call", lambda *_: SimpleNamespace(responses=found))
    broker = replace(_broker(("127.0.0.1", 1)), versions={key: version[:2] for key, version in VERSIONS.items()})
    assert remove(broker, Belongings(topics=list(codes))) == ["kept: TOPIC_AUTHORIZATION_FAILED"]


def _outcome(verdict: CaseVerdict, *lines: Line) -> CaseOutcome:
    return CaseOutcome(lists_groups, verdict, "why", 0.1, (), lines)


def test_only_regressions_are_red_with_baseline(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    file.write_text(json_document("host:1", [_outcome(CaseVerdict.DIFFERS)], {}))
    before = read_baseline(file)
    assert worse(before, [_outcome(CaseVerdict.FAIL)])
    assert not worse(before, [_outcome(CaseVerdict.DIFFERS)])
    assert not worse(before, [_outcome(CaseVerdict.PASS)])
    assert not worse({}, [_outcome(CaseVerdict.FAIL)])


def test_baseline_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(NoBaseline, match="is no baseline"):
        read_baseline(tmp_path / "bad.json")


def test_junit_counts_failures_and_skips() -> None:
    found = (CaseVerdict.PASS, CaseVerdict.FAIL, CaseVerdict.NOT_ADVERTISED, CaseVerdict.OUR_ERROR)
    outcomes = [_outcome(each) for each in found]
    (suite,) = ElementTree.fromstring(junit_document("host:1", outcomes, False, {}))
    counts = {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")}
    assert counts == {"name": "handshake", "tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    assert [[part.tag for part in test] for test in suite] == [[], ["failure"], ["skipped"], ["error"]]
    assert f"again: ./crucible probe host:1 --case {lists_groups.id}" in str(suite[1][0].text)


def test_page_and_the_document_have_everything() -> None:
    line = Line(1, RECEIVED, "ListGroups 0 {<b>}", b"\x01\x02")
    failed = [_outcome(CaseVerdict.FAIL, line)]
    shown = page_document("host:1", failed, failed, "1 case", {"handshake/of-test": "4.1.1: pass"})
    assert "ListGroups 0 {&lt;b&gt;}" in shown
    assert "0102" in shown
    assert "4.1.1: pass" in shown
    (result,) = json.loads(json_document("host:1", [_outcome(CaseVerdict.FAIL, line)], {}))["cases"]
    assert result["conversation"] == [
        {"connection": 1, "direction": "<", "words": "ListGroups 0 {<b>}", "bytes": "0102"}
    ]


def test_page_begins_with_the_verdict_and_can_be_filtered() -> None:
    outcomes = [_outcome(each) for each in (CaseVerdict.PASS, CaseVerdict.FAIL, CaseVerdict.NOT_ADVERTISED)]
    failed = page_document("host:1", outcomes, outcomes[1:2], "3 cases", {})
    passed = page_document("host:1", outcomes[:1], (), "1 case", {})
    assert "<title>failed: Kafka protocol of host:1</title>" in failed
    assert "1 of 3 cases count against the broker" in failed
    assert failed.index("count against the broker") < failed.index("What fails</h2>") < failed.index('class="case"')
    assert "None of 1 cases counts against the broker" in passed
    assert "What fails" not in passed
    for verdict in (CaseVerdict.PASS, CaseVerdict.FAIL, CaseVerdict.NOT_ADVERTISED):
        assert f'<input type="checkbox" value="{verdict.value}" checked>' in failed
        assert f'data-verdict="{verdict.value}"' in failed
    assert STYLE.read_text(encoding="utf-8") in failed


def test_oracle_shows_the_first_field_that_differs() -> None:
    def responding(code: ErrorCode) -> CaseOutcome:
        return _outcome(CaseVerdict.PASS, Line(1, RECEIVED, "ListGroups 0 {}", b"", empty_response(KEY, 0, code)))

    alike = first_difference(responding(ErrorCode.none), responding(ErrorCode.none))
    other = first_difference(responding(ErrorCode.none), responding(ErrorCode.coordinator_not_available))
    assert alike == ""
    assert other == "response 1 (ListGroups 0), error_code: NONE, and COORDINATOR_NOT_AVAILABLE at the oracle"


def test_many_fetches_cost_few_round_trips() -> None:
    said: list[str] = []
    far = Mock()
    far.send.side_effect = lambda *_: said.append("sent")
    far.receive.side_effect = lambda *_: said.append("received")
    count = 2 * AT_ONCE + 1
    assert len(_pipelined(far, 18, [FetchRequest()] * count)) == count
    assert said == ["sent"] * AT_ONCE + ["received"] * AT_ONCE + said[: 2 * AT_ONCE] + ["sent", "received"]
