"""Workers that join a benchmark from elsewhere, with clocks of their own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import structs

from bench.load.comparison import Entry, series_of
from bench.load.connections import connection_plans
from bench.load.history import OWN_DISK_VARIABLE, shares_disk
from bench.load.options import LoadError, LoadOptions
from bench.load.page import reasons
from bench.load.results import LoadResult
from bench.load.run import run
from bench.load.spec import SPEC_NAME, LoadSpec, worker_plans, write_spec
from bench.load.target import started
from bench.load.tests.planted import result
from bench.load.worker import LOCUSTFILE
from bench.load.workload import Transform, workload_of
from bench.locust.clock import SHIFT_VARIABLE, UNCORRECTED_VARIABLE, ClockOffset
from bench.locust.processes import ROOT, SPEC_VARIABLE
from bench.ports import free_port
from reports.parts import read_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = LoadSpec(
    bootstrap=[],
    topics=["t"],
    partitions=4,
    producers=1,
    subscriptions=1,
    consumers=1,
    records_per_s=0,
    value_bytes=100,
    batch_records=1,
    workers=2,
)
TABLE = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 2_000, "subscriptionsPerTopic": 3}


@contextmanager
def workers(port: int, environments: list[dict[str, str]]) -> Iterator[None]:
    program = f"from bench.load.worker import serve; raise SystemExit(serve(('127.0.0.1', {port}), True, print))"
    found = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, **environment})
        for environment in environments
    ]
    try:
        yield
        assert [each.wait(30) for each in found] == [0] * len(found)
    finally:
        for each in found:
            each.kill()
            each.wait()


def played(folder: Path, environments: list[dict[str, str]], local: int = 0) -> LoadResult:
    """Play a workload whose producer and one reader are of the first worker, and two readers of the second."""
    port = free_port()
    options = LoadOptions(seconds=3, warmup_s=1, workers=local, joining=len(environments), listen=("127.0.0.1", port))
    with workers(port, environments), started("reference", lambda _: None) as target:
        return run(workload_of(TABLE, "w", "w"), target, options, folder, lambda _: None)


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_shifted_clocks_are_corrected(tmp_path: Path) -> None:
    result = played(tmp_path, [{SHIFT_VARIABLE: "5"}, {SHIFT_VARIABLE: "-5"}])
    assert result.findings.is_clean
    assert result.findings.acknowledged == result.findings.read > 3 * 3 * 2_000
    offsets_s = sorted(round(clock.offset_us / 1e6) for clock in result.clocks)
    assert offsets_s == [-5, 5]
    assert 0 < result.clock_error_ms < 500
    assert result.quantile_ms("end_to_end", 0.99) < 2_000
    assert result.quantile_ms("end_to_end", 0.5) >= result.quantile_ms("publish", 0.01) / 2 - result.clock_error_ms


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.rotated(4, "load")
def test_spark_judges_the_history_of_workers_on_other_machines(spark: "SparkSession", tmp_path: Path) -> None:
    from reports.jobs.load_ledger import judge_load

    own_disk = {OWN_DISK_VARIABLE: "1", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    result = played(tmp_path / "run", [own_disk, own_disk])
    assert result.findings.is_clean
    assert sorted((each.writer, each.closed) for each in read_progress(tmp_path / "run")) == [
        ("worker-0", True),
        ("worker-1", True),
    ]
    assert not list((tmp_path / "tmp").glob("crucible-history-*")), "copies stay on the workers' disks"
    judged, counts = judge_load(spark, tmp_path / "run")
    assert counts.acknowledged == counts.read == result.findings.read > 3 * 3 * 2_000
    assert {name: judged.found[name] for name in asdict(counts)} == asdict(counts)


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_run_whose_worker_cannot_send_its_history_is_invalid_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where the folder should be")
    result = played(tmp_path, [{OWN_DISK_VARIABLE: "1"}])
    assert result.findings.is_clean
    assert result.outcome == "INVALID"
    assert re.match(
        r"The history of worker 0 on .+ could not be copied here: .+ cannot be written there", result.reason
    )


def test_worker_knows_whether_it_has_the_disk_of_the_benchmark(tmp_path: Path) -> None:
    text = write_spec(SPEC, tmp_path / SPEC_NAME).read_bytes()
    assert shares_disk(tmp_path, text)
    assert not shares_disk(tmp_path / "none", text)
    assert not shares_disk(tmp_path, text + b" "), "a folder of the same name on another machine"


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_without_a_correction_latencies_are_wrong_by_seconds(tmp_path: Path) -> None:
    uncorrected = {UNCORRECTED_VARIABLE: "1"}
    result = played(tmp_path, [{SHIFT_VARIABLE: "5", **uncorrected}, {SHIFT_VARIABLE: "-5", **uncorrected}])
    worst_ms = result.quantile_ms("end_to_end", 0.999)
    least_ms = result.quantile_ms("end_to_end", 0.01)
    assert worst_ms > 9_000 or least_ms == 0  # by which of both workers has the producer


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_worker_whose_benchmark_is_killed_ends_with_one_sentence(tmp_path: Path) -> None:
    """The benchmark waits for a second worker, so the first one has no work yet."""
    port = free_port()
    environment = {**os.environ, SPEC_VARIABLE: str(write_spec(SPEC, tmp_path / "spec.json")), "PYTHONPATH": str(ROOT)}
    master = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--master", "--master-bind-host", "127.0.0.1"]
    master += ["--master-bind-port", str(port), "--headless", "--expect-workers", "2"]
    joined = [sys.executable, "-m", "crucible_kafka", "worker", "--join", f"127.0.0.1:{port}", "--once"]
    pipes = {"text": True, "env": environment, "cwd": ROOT, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE}
    with (
        subprocess.Popen(master, **pipes) as benchmark,  # type: ignore[call-overload]
        subprocess.Popen(joined, **pipes) as worker,  # type: ignore[call-overload]
    ):
        try:
            assert any("reported as ready" in line for line in benchmark.stderr)
            time.sleep(3)  # Heartbeats come once a second.
            benchmark.kill()
            *_, last = worker.communicate(timeout=40)[1].splitlines()
        finally:
            benchmark.kill()
            worker.kill()
    assert worker.returncode == 2
    assert last == f"crucible: the benchmark at 127.0.0.1:{port} is gone, and this worker's part of its run is lost."


STRAY = """
import sys
from types import SimpleNamespace
from bench.load import locustfile
runner = SimpleNamespace(worker_index=int(sys.argv[1]))
environment = SimpleNamespace(runner=runner, exchange=SimpleNamespace(spec=sys.argv[2].encode()))
locustfile.on_command(environment, "go")
locustfile._load_of(environment)
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("index", "spec", "complaint"),
    [(2, True, "more workers joined than the 2 that were expected"), (2, False, "worker 2 joined after the start")],
)
def test_worker_too_many_says_so(index: int, spec: bool, complaint: str) -> None:
    text = msgspec.json.encode(SPEC).decode() if spec else ""
    words = [sys.executable, "-c", STRAY, str(index), text]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert complaint in ended.stderr.splitlines()[-1]


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_workers_of_one_machine_have_one_clock(tmp_path: Path) -> None:
    result = played(tmp_path, [{}], local=1)
    assert result.clocks == [ClockOffset(0, 0)] * 2
    assert result.clock_error_ms == 0
    assert result.findings.is_clean


def test_run_whose_clocks_are_less_certain_than_its_latencies_is_marked() -> None:
    sure, unsure = ClockOffset(0, 1_000), ClockOffset(5_000_000, 4_500)
    marked = structs.replace(result(latency_us=5_000), clocks=[sure, unsure, sure])
    assert marked.clock_error_ms == 5.5
    assert "median is 5.0 ms" in marked.clock_warning
    (series,) = series_of([Entry(marked)])
    assert list(reasons(series)) == [marked.clock_warning]
    for clocks in ([unsure], [sure, sure], []):
        assert not structs.replace(marked, clocks=clocks).clock_warning


@pytest.mark.parametrize(("producers", "consumers", "workers"), [(1, 1, 2), (1, 3, 2), (5, 2, 3), (2, 7, 4)])
def test_each_client_is_of_one_worker_and_none_has_more_than_users(
    producers: int, consumers: int, workers: int
) -> None:
    spec = LoadSpec(
        bootstrap=[],
        topics=["a", "b"],
        partitions=8,
        producers=producers,
        subscriptions=1,
        consumers=consumers,
        records_per_s=0,
        value_bytes=100,
        batch_records=1,
        connections=1_000,
        connections_per_s=100,
        transform=Transform(instances=3),
        workers=workers,
    )
    dealt = [worker_plans(spec, number) for number in range(workers)]
    found = [
        *(plan.process for own, _, _, _ in dealt for plan in own),
        *(plan.process for _, own, _, _ in dealt for _, plan in own),
        *(plan.sink.process for _, _, own, _ in dealt for plan in own),
        *(plan.process for _, _, _, own in dealt for plan in own),
    ]
    idle = len(connection_plans(["a", "b"], 1_000, 100))
    assert len(found) == len(set(found)) == 2 * (producers + consumers + 3) + idle
    assert max(sum(len(each) for each in (a, b, c, d)) for a, b, c, d in dealt) == -(-len(found) // workers)


def test_more_workers_than_clients_are_refused(tmp_path: Path) -> None:
    with (
        started("127.0.0.1:1", lambda _: None) as target,
        pytest.raises(LoadError, match="9 workers are too many for 4"),
    ):
        run(workload_of(TABLE, "w", "w"), target, LoadOptions(joining=9), tmp_path, lambda _: None)
