"""Spools, samples and tables of a run."""

import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaos.live.errors import SetupError
from chaos.live.run_folder import RunFolder, TraceSpool
from chaos.live.sampler import read_exposition
from reports.rows import BrokerSample, FaultRow, TraceRow
from reports.schema import BROKER, FAULTS, TRACE
from scenarios import loader


def test_spools_become_the_trace_table_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    for incarnation in (0, 1):
        path = folder.spools / f"node-0-{incarnation}.jsonl"
        spool = TraceSpool(path)
        for seq in range(3):
            spool.add(TraceRow(0, incarnation, seq, 10 * seq, "request", 5, "fetcher-ü", 1, 17, 99, 2).values())
        spool.close()
    with path.open("ab") as file:
        file.write(b"[0,1,3,30,")
    assert folder.collect_trace() == 6
    assert not folder.spools.exists()
    tables = [pq.read_table(each) for each in sorted((folder.path / "trace").glob("node*.parquet"))]
    assert [table.column_names for table in tables] == [[column.name for column in TRACE.columns]] * 2
    assert tables[1].to_pylist()[2]["client_id"] == "fetcher-ü"
    assert tables[1].to_pylist()[2]["incarnation"] == 1


def test_faults_are_written_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.write_faults([FaultRow("b", "link_cut", 20, 30, "link", 1), FaultRow("a", "node_killed", 5, 9, "node-0", 1)])
    table = pq.read_table(folder.path / "faults.parquet")
    assert table.column_names == [column.name for column in FAULTS.columns]
    assert table.column("name").to_pylist() == ["a", "b"]


def test_run_without_faults_still_has_the_table(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.write_faults([])
    folder.write_samples([BrokerSample(0, 1, "process_rss_bytes", 2)])
    assert pq.read_table(folder.path / "faults.parquet").num_rows == 0
    samples = pq.read_table(folder.path / "trace" / "broker.parquet")
    assert samples.column_names == [column.name for column in BROKER.columns]


def test_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old-run").touch()
    with pytest.raises(SetupError, match="not empty"):
        RunFolder(tmp_path).make()


def test_expiration_of_producers_is_known_while_the_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    assert folder.producer_expiration_us() is None
    for scenario, expiration_us in (("idle-producers", 1_500_000), ("plain-load", 86_400_000_000)):
        folder.scenario.write_bytes(pickle.dumps(loader.find(scenario)))
        assert folder.producer_expiration_us() == expiration_us
    folder.scenario.write_bytes(folder.scenario.read_bytes()[:50])
    assert folder.producer_expiration_us() is None
    folder.collect_trace()
    assert folder.producer_expiration_us() is None


def test_files_of_a_killed_writer_are_set_aside_and_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.write_samples([])
    history = folder.path / "history"
    history.mkdir()
    (history / "runs-worker-0.parquet").write_bytes(b"PAR1 and then nothing")
    (history / "runs-worker-1.parquet").write_bytes(b"")
    assert folder.set_torn_aside() == ["runs-worker-0.torn", "runs-worker-1.torn"]
    assert [each.name for each in folder.path.glob("*/*.parquet")] == ["broker.parquet"]
    assert folder.set_torn_aside() == []


def test_metrics_keep_kafka_s_names() -> None:
    text = (
        "# HELP kafka_x_total kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Fetch\n"
        "# TYPE kafka_x_total counter\n"
        'kafka_x_total{request="Fetch"} 7\n'
        "# HELP kafka_y kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions\n"
        "# TYPE kafka_y gauge\n"
        "kafka_y 3\n"
        "# HELP kafka_z kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs\n"
        "# TYPE kafka_z summary\n"
        'kafka_z{quantile="0.99"} 12\n'
        "kafka_z_count 5\n"
    )
    assert dict(read_exposition(text)) == {
        'kafka.network:type=RequestMetrics,name=RequestsPerSec{request="Fetch"}': 7,
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions": 3,
        'kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs{quantile="0.99"}': 12,
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs_count": 5,
    }
