"""The generator's own maximum: kept for this machine and commit, and the limit of a run's result."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench.load import calibration
from bench.load.calibration import FILE_NAME, Batches, Calibration, Calibrations, Reached, full
from bench.load.command import with_capacity
from bench.load.options import LoadOptions
from bench.load.results import LoadResult
from bench.load.search import sustained_rate
from bench.load.tests.planted import result

BATCHES = Batches(1024, 16)


class Sink:
    """Stand in for measurements that take seconds."""

    def __init__(self, sent_per_s: float = 100_000, read_per_s: float = 100_000) -> None:
        self.measured: list[Batches] = []
        self._rates = (sent_per_s, read_per_s)

    def __call__(self, batches: Batches, _: float, __: Callable[[str], None]) -> list[Reached]:
        self.measured.append(batches)
        return [
            Reached(work, int(rate), 0, 1.0, 1.0)
            for work, rate in zip(("sending", "reading"), self._rates, strict=True)
        ]


def calibrations(folder: Path, sink: Sink) -> Calibrations:
    return Calibrations(folder, lambda _: None, sink)


def near(rate: float = 45_000, **planted: int) -> LoadResult:
    """A run whose batches have 16 records, with a worker that wants half a processor."""
    return result(rate, records_in_a_batch=16, wanted_permille=planted.get("wanted_permille", 500))


def test_figure_is_measured_once_and_kept_for_later_runs(tmp_path: Path) -> None:
    sink = Sink()
    assert calibrations(tmp_path, sink).known(BATCHES) == calibrations(tmp_path, sink).known(BATCHES)
    assert sink.measured == [BATCHES]
    assert calibrations(tmp_path, sink).find(Batches(1024, 18)) is not None
    for other in (Batches(1024, 24), Batches(1024, 12), Batches(100, 16), Batches(1024, 16, "zstd")):
        assert calibrations(tmp_path, sink).find(other) is None


@pytest.mark.parametrize("differs", ["machine", "commit"])
def test_figures_of_another_machine_or_commit_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    sink = Sink()
    calibrations(tmp_path, sink).known(BATCHES)
    if differs == "machine":
        monkeypatch.setattr(calibration, "machine", lambda: {"cpu": "another", "cores": 2})
    else:
        monkeypatch.setattr(calibration, "commit", lambda: "another")
    calibrations(tmp_path, sink).known(BATCHES)
    assert sink.measured == [BATCHES] * 2
    assert len(msgspec.json.decode((tmp_path / FILE_NAME).read_bytes())) == 2


def test_damaged_file_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("[{")
    sink = Sink()
    calibrations(tmp_path, sink).known(BATCHES)
    assert sink.measured == [BATCHES]


def test_worker_sends_and_reads_in_one_thread() -> None:
    calibration = Calibration(cpu="c", cores=2, commit="1", batches=BATCHES, sent_per_s=100_000, read_per_s=50_000)
    assert calibration.capacity(workers=1, subscriptions=0) == pytest.approx(100_000)
    assert calibration.capacity(workers=1, subscriptions=1) == pytest.approx(100_000 / 3)
    assert calibration.capacity(workers=4, subscriptions=1) == pytest.approx(200_000 / 3)


def test_run_near_generator_maximum_is_invalid(tmp_path: Path) -> None:
    """One worker sends and reads 50,000 records a second. 80 % of it are 40,000."""
    kept = calibrations(tmp_path, Sink())
    options = LoadOptions()
    outcome = with_capacity(near(40_500), options, kept)
    assert outcome.outcome == "INVALID"
    assert "The load generator was the limit: it reaches 50,000 records/s against a sink" in outcome.reason
    assert with_capacity(near(39_500), options, kept).outcome == "PASSED"
    assert near(40_500).outcome == "PASSED"


def test_nothing_is_measured_for_a_run_that_is_far_from_the_limit(tmp_path: Path) -> None:
    sink = Sink()
    kept = calibrations(tmp_path, sink)
    assert with_capacity(near(wanted_permille=300), LoadOptions(), kept).generator_capacity == 0
    assert sink.measured == []
    kept.known(BATCHES)  # What is known is used.
    assert with_capacity(near(wanted_permille=300), LoadOptions(), kept).outcome == "INVALID"


def test_figures_of_the_native_client_say_nothing_of_others(tmp_path: Path) -> None:
    kept = calibrations(tmp_path, Sink())
    other = msgspec.structs.replace(near(), client="librdkafka")
    assert with_capacity(other, LoadOptions(), kept) == other
    assert with_capacity(near(), LoadOptions(joining=1), kept) == near(), "nor of other machines"


def test_search_ends_near_generator_maximum(tmp_path: Path) -> None:
    kept = calibrations(tmp_path, Sink())
    search = sustained_rate(lambda rate: with_capacity(near(rate), LoadOptions(), kept), 1_000)
    assert (search.rate, search.beyond, search.generator_was_the_limit) == (38_750, 40_000, True)


def test_worker_that_never_sleeps_while_the_rate_is_not_reached_is_the_limit() -> None:
    def busy(wanted_permille: int, acknowledged: int = 500) -> LoadResult:
        return result(1_000, acknowledged=acknowledged, wanted_permille=wanted_permille, cpu_permille=880)

    assert busy(950).outcome == "INVALID"
    assert "it never slept, and the rate was not reached" in busy(950).reason
    assert busy(890).outcome == "PASSED"
    assert busy(950, 1_000).outcome == "PASSED"


def test_worker_that_waits_for_a_processor_while_the_rate_is_not_reached_is_the_limit() -> None:
    def starved(wanted_permille: int, acknowledged: int = 500) -> LoadResult:
        return result(1_000, acknowledged=acknowledged, wanted_permille=wanted_permille, cpu_permille=80)

    assert starved(600).outcome == "INVALID"
    assert "it waited for a processor, and the rate was not reached" in starved(600).reason
    assert starved(600).reason.endswith(
        "Other programs (or brokers here) had the processor: free it, or take a lower rate."
    )
    assert starved(570).outcome == "PASSED"
    assert starved(600, 1_000).outcome == "PASSED"


def test_full_batches_are_those_of_kafka_s_producers() -> None:
    assert (full(100).records, full(1024).records, full(10**6).records) == (163, 16, 1)
