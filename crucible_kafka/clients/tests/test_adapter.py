"""Errors of adapters, and their verdicts."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from campaigns.nights.stages import clients
from crucible_kafka.clients import adapter as adapter_module
from crucible_kafka.clients.adapter import AdapterProcess, ReplyMissing, adapter_info
from crucible_kafka.clients.adapter_page import PAGE, SCHEMA, page, schema_document
from crucible_kafka.clients.bundled import AdapterNotFound, bundled, find
from crucible_kafka.clients.case import AdapterFailed, ClientVerdict
from crucible_kafka.clients.protocol import (
    SCHEMA_VERSION,
    Acknowledged,
    InvalidMessage,
    Poll,
    Reply,
    decode,
    encode,
    schema,
)
from crucible_kafka.clients.tests.scripted_adapter import scripted

LONGEST_ADAPTER = 250
"""Number of lines that are not empty. An author must be able to write one in an hour."""
LONGEST_IN_GO = 570
"""In Go each error takes three lines, and what sarama brings comes through channels."""


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_module, "MAX_LINES_AHEAD", 500)
    monkeypatch.setattr(adapter_module, "END_S", 0.5)


@pytest.mark.live
@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("older", "The adapter speaks version 0 of the protocol, and this is 1: adapt it (docs/client-adapters.md)."),
        ("incomplete", "The adapter's reply to hello is not complete: Object missing required field `features`."),
    ],
)
def test_adapter_that_says_hello_wrongly_is_refused(way: str, sentence: str) -> None:
    with pytest.raises(AdapterFailed) as refused:
        adapter_info(scripted(way))
    assert str(refused.value) == sentence


def poll_until_it_fails(process: AdapterProcess) -> None:
    for _ in range(1000):
        process.call(Poll(id=process.next_id(), client="consumer-1", timeout_ms=1), limit_s=30)


@pytest.mark.live
@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("garbage", "The adapter wrote a line that is no JSON object: 'Hello, world'."),
        ("unknown-event", "The adapter wrote a message that the protocol does not have"),
        ("exits", "The adapter exited with code 1: the client is broken."),
        ("flood", "The adapter floods: 500 events came that nothing had requested."),
    ],
)
def test_adapter_that_fails_later_is_named_at_the_next_call(way: str, sentence: str) -> None:
    process = AdapterProcess(scripted(way))
    try:
        with pytest.raises(AdapterFailed) as failed:
            poll_until_it_fails(process)
    finally:
        process.end()
    assert str(failed.value).startswith(sentence)


@pytest.mark.live
def test_silent_adapter_is_ended_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_module, "HELLO_LIMIT_S", 0.5)
    with pytest.raises(AdapterFailed, match=r"has not replied to hello within 0\.5 s"):
        adapter_info(scripted("silent"))


@pytest.mark.live
def test_processes_that_an_adapter_leaves_behind_are_ended_and_named() -> None:
    process = AdapterProcess(scripted("child"))
    assert process.end() == "it left 1 process behind"


@pytest.mark.live
def test_adapter_that_ignores_sigterm_is_ended() -> None:
    process = AdapterProcess(scripted("deaf"))
    assert process.end() == ""
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.live
def test_call_that_does_not_return_ends_at_its_limit() -> None:
    process = AdapterProcess(scripted("hangs"))
    try:
        with pytest.raises(ReplyMissing):
            process.call(Poll(id=process.next_id(), client="consumer-1", timeout_ms=1), limit_s=0.2)
    finally:
        process.end()


def test_messages_are_read_as_their_structs() -> None:
    assert decode(b'{"id": 3, "result": {"offset": 1}}') == Reply(id=3, result={"offset": 1})
    line = b'{"event": "acknowledged", "client": "p", "record": 1, "partition": 0, "more": true}'
    assert decode(line) == Acknowledged(client="p", record=1, partition=0)
    assert b'"op":"poll"' in encode(Poll(id=1, client="c", timeout_ms=100))


@pytest.mark.parametrize("line", [b"[]", b"{", b"\xff", b'{"id": "x"}', b'{"event": "record"}'])
def test_other_lines_are_garbage(line: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(line)


def test_schema_names_each_operation_and_event() -> None:
    document = schema()
    assert {"Hello", "Open", "SendOffsets", "Record", "Lost", "Failure"} <= set(document["$defs"])
    assert str(SCHEMA_VERSION) in document["title"]


def test_adapters_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    own = find("own", lambda _: None)
    assert own.argv[0] == sys.executable
    assert Path(own.argv[1]).is_file()
    script = tmp_path / "my-adapter"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(AdapterNotFound, match="is not executable: chmod"):
        find(str(script), lambda _: None)
    script.chmod(0o755)
    assert find(str(script), lambda _: None).argv == [str(script)]
    assert {"own", "kafka-java", "kafka-python", "confluent-kafka", "aiokafka"} <= set(bundled())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kafka-pyton", "did you mean kafka-python"),
        ("own@2.0", "has one version only"),
        ("kafka-python@; rm", "is no version"),
        ("", "ADAPTER is empty"),
    ],
)
def test_adapters_that_are_not_there_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(AdapterNotFound, match=sentence):
        find(text, lambda _: None)


def test_adapters_are_short() -> None:
    folder = Path(adapter_module.__file__).with_name("adapters")
    for pattern, longest in (("*.py", LONGEST_ADAPTER), ("*.java", LONGEST_ADAPTER), ("*.go", LONGEST_IN_GO)):
        lengths = Counter[str]()
        for file in folder.glob(f"*/{pattern}"):
            lengths[file.parent.name] += sum(map(bool, file.read_text().splitlines()))
        assert lengths, pattern
        assert {name: length for name, length in lengths.items() if length > longest} == {}


def test_page_and_its_schema_are_up_to_date() -> None:
    again = "run: python -m crucible_kafka.clients.adapter_page"
    assert PAGE.read_text(encoding="utf-8") == page(), again
    assert SCHEMA.read_text(encoding="utf-8") == schema_document(), again


def test_nights_know_the_bundled_clients_and_the_verdict_on_our_errors() -> None:
    assert clients.bundled_clients() == bundled()
    assert ClientVerdict.PASS.value == clients.PASS
    assert ClientVerdict.OUR_ERROR.value == clients.OUR_ERROR
