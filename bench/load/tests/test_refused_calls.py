"""Calls of a benchmark that cannot succeed: they end before a broker is started, or with what the broker said."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fleet.behaviours.bodies import metadata_request
from bench.load import command
from bench.load.command import BenchOptions, play
from bench.load.options import LoadError, LoadOptions
from bench.load.producer import METADATA_VERSION
from bench.load.run import run
from bench.load.target import LoadTarget, started
from bench.load.workload import WorkloadError, workload_of
from reference_broker.blocking.transport import Connection
from reference_broker.wire.apis import ApiKey

GOOD = "{messageSize: 200, producerRate: 500}"


@pytest.mark.parametrize(
    ("workload", "targets", "change", "complaint"),
    [
        (GOOD, ["reference", "no_such_broker"], {}, "'no_such_broker' is no target"),
        ("{topicks: 1}", ["reference"], {}, "unknown field `topicks`"),
        ("{payloadFile: none.data}", ["reference"], {}, "payloadFile none.data does not exist"),
        (GOOD, ["reference"], {"rates": (1_000.0, 1e9)}, "first: 1,000,000,000 records/s are impossible"),
        (GOOD, ["reference"], {"load": LoadOptions(joining=9)}, "9 workers are too many for 2 clients"),
        (GOOD, ["reference"], {"load": LoadOptions(client="java"), "search": True}, "--max judges rates"),
        (GOOD, ["reference"], {"load": LoadOptions(seconds=1e12)}, "first: it writes about"),
        ("crucible: {faults: [{kind: link_cut, atS: 1}]}", ["reference"], {"make_links": print}, "has no {advertised}"),
        ("crucible: {faults: [{kind: node_killed, atS: 1, node: 3}]}", ["reference/3"], {}, "3 is none of 0, 1, 2"),
        ("crucible: {faults: [{kind: node_killed, atS: 1, node: 1}]}", ["reference"], {}, "1 is none of 0"),
        ("crucible: {faults: [{kind: node_killed, atS: 1}]}", ["127.0.0.1:1"], {}, "these brokers run elsewhere"),
        ("crucible: {topicConfig: {cleanup.policy: compact}}", ["reference"], {}, "compact needs keys"),
    ],
)
def test_what_needs_no_broker_is_checked_before_one_is_started(
    workload: str,
    targets: list[str],
    change: dict[str, object],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def no_start(text: str, *_: object) -> Iterator[LoadTarget]:
        raise AssertionError(f"{text} was started")
        yield

    monkeypatch.setattr(command, "started", no_start)
    (tmp_path / "first.yaml").write_text(GOOD)
    (tmp_path / "w.yaml").write_text(workload)
    workloads = [tmp_path / "first.yaml", tmp_path / "w.yaml"]
    options = BenchOptions(workloads, targets, **{"load": LoadOptions(), "out": tmp_path, **change})  # type: ignore[arg-type]
    with pytest.raises((LoadError, WorkloadError)) as refused:
        play(options, lambda _: None)
    assert complaint in str(refused.value)


@pytest.mark.live
def test_log_of_a_node_that_does_not_start_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "broken.toml"
    target.write_text(
        'title = "Broken"\n[node]\ncommand = ["/bin/sh", "-c", "echo no disk here; exit 3"]\nready_limit_s = 20\n'
    )
    logs = tmp_path / "failed"
    with (
        pytest.raises(LoadError, match="ended with status 3 before it was ready") as refused,
        started(str(target), lambda _: None, failed_logs=logs),
    ):
        pass
    log = logs / "node-0" / "log.txt"
    assert str(refused.value).endswith(f"its log ends with: no disk here (the whole logs: {logs})")
    assert log.read_text() == "no disk here\n"


@pytest.mark.live
def test_target_whose_program_is_missing_ends_with_one_sentence(tmp_path: Path) -> None:
    target = tmp_path / "absent.toml"
    target.write_text('title = "Absent"\n[node]\ncommand = ["/no/such/program"]\n')
    with pytest.raises(LoadError, match="/no/such/program cannot be run: No such file"), started(str(target), print):
        pass


@pytest.fixture(scope="module")
def broker() -> Iterator[LoadTarget]:
    with started("reference", lambda _: None) as target:
        yield target


def topics_of(target: LoadTarget) -> list[str]:
    everything = replace(metadata_request(()), topics=None)
    with Connection.open(*target.bootstrap[0], 5_000_000) as connection:
        body = connection.call(ApiKey.METADATA, METADATA_VERSION, everything, 5_000_000)
    return [topic.name for topic in body.topics if not topic.is_internal]


OF_MESSAGES, OF_SEGMENTS = {"max.message.bytes": 4_000}, {"segment.bytes": 4_000}


@pytest.mark.live
@pytest.mark.parametrize(
    ("extensions", "limit", "sentence"),
    [
        ({}, OF_MESSAGES, "MESSAGE_TOO_LARGE: raise max.message.bytes"),
        ({}, OF_SEGMENTS, "RECORD_LIST_TOO_LARGE: raise segment.bytes"),
        ({"transactions": {"records": 5}}, OF_MESSAGES, "MESSAGE_TOO_LARGE: raise max.message.bytes"),
        ({"client": "librdkafka"}, OF_MESSAGES, "MESSAGE_TOO_LARGE: raise max.message.bytes"),
        ({"client": "librdkafka"}, OF_SEGMENTS, "RECORD_LIST_TOO_LARGE: raise segment.bytes"),
        ({"client": "kafka-python"}, OF_MESSAGES, "MESSAGE_TOO_LARGE: raise max.message.bytes"),
    ],
    ids=["native", "native-segment", "transactions", "librdkafka", "librdkafka-segment", "kafka-python"],
)
@pytest.mark.rotated(4, "load")
def test_batches_that_are_too_large_end_the_run_at_once(
    extensions: dict[str, object], limit: dict[str, int], sentence: str, broker: LoadTarget, tmp_path: Path
) -> None:
    table = {"messageSize": 5_000, "producerRate": 100, "crucible": {"topicConfig": limit, **extensions}}
    (address,) = broker.bootstrap
    out, start_s = tmp_path / "run", time.monotonic()
    with started(f"{address[0]}:{address[1]}", lambda _: None) as target, pytest.raises(LoadError) as refused:
        run(workload_of(table, "w", "w"), target, LoadOptions(seconds=120, warmup_s=60), out, lambda _: None)
    assert f"of 5,000 bytes with {sentence} under crucible.topicConfig, which is 4000" in str(refused.value)
    assert time.monotonic() - start_s < 60
    assert not out.exists()
    assert topics_of(broker) == []
