"""A judging that was rehearsed finds what one finds that was not, run after run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reports import collect
from reports.collect import Findings, Query
from reports.judge import _findings, silent
from reports.manifest import read_manifest
from reports.read_tables import DECIDING, JobConfig, RunConfig, present_in
from reports.schema import REMOTE_FILES, TABLES, files_of
from reports.standby import rehearsal
from reports.standby.expected import SELDOM, Expected
from reports.standby.rehearsal import rehearsing, write_history
from reports.tests.planted_groups import plant_committed_records_read_again
from reports.tests.played import generate
from reports.tests.test_judge_finds_anomalies import plant_lost_write

SOME = {"unseen", "lost-write", "redelivery", "facts", "percentiles", "faults", "groups", "load"}


def histories(folder: Path) -> list[Path]:
    """Two broken ones and a clean one."""
    lost, read_again, clean = (generate(50 + number) for number in range(3))
    plant_lost_write(lost)
    plant_committed_records_read_again(read_again)
    return [each.write(folder / f"{number}") for number, each in enumerate((lost, read_again, clean))]


def only_some(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collect.queries

    def some(tables: object, runs: int) -> list[Query]:
        return [each for each in whole(tables, runs) if each.name in SOME]  # type: ignore[arg-type]

    monkeypatch.setattr(collect, "queries", some)
    monkeypatch.setattr(rehearsal, "queries", some)


def expected_of(run_dirs: list[Path]) -> Expected:
    names = {name for _, name in present_in(run_dirs)}
    return Expected((SELDOM & names,) * len(run_dirs), "frames" in names)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.rotated(8, "judges")
def test_rehearsal_leaves_nothing_in_findings(
    is_whole: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_whole:
        only_some(monkeypatch)
    runs = histories(tmp_path / "runs")
    write_history(tmp_path / "rehearsed")
    expected = expected_of(runs)
    judged: list[list[Findings]] = []
    with rehearsing(spark, expected) as rehearsed:
        assert rehearsed.rehearse(tmp_path / "rehearsed") is not None
        for some in (runs[2:], runs):
            assert rehearsed.suits(some, config_of(some))
            judged.append(rehearsed.findings(some, silent))
    for some, found in zip((runs[2:], runs), judged, strict=True):
        assert found == plainly(some, spark)
    broken = [{name for name, each in one.found.items() if each.total} for one in judged[-1]]
    assert broken[0] == {"lost-write", "unseen"}
    assert broken[1] == {"redelivery"}
    assert not broken[2]


def plainly(run_dirs: list[Path], spark: SparkSession) -> list[Findings]:
    return _findings(run_dirs, [read_manifest(run_dir) for run_dir in run_dirs], spark, silent)


def config_of(run_dirs: list[Path]) -> JobConfig:
    manifests = [read_manifest(run_dir) for run_dir in run_dirs]
    return JobConfig(runs={run: RunConfig(warm_up_us=manifest.warm_up_us) for run, manifest in enumerate(manifests)})


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("calls", [0, 12])
@pytest.mark.rotated(8, "judges")
def test_started_judging_completes_when_run_is_complete(
    calls: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_some(monkeypatch)
    monkeypatch.setattr(rehearsal, "drawing_process", lambda: None)
    (run, *_) = histories(tmp_path / "runs")
    left = iter(range(calls))
    with rehearsing(spark, expected_of([run])) as rehearsed:
        rehearsed.prepare(lambda: next(left, None) is None)
        assert rehearsed.findings([run], silent) == plainly([run], spark)


def without(table: str) -> Callable[[Path], None]:
    def remove(run_dir: Path) -> None:
        (each,) = (one for one in TABLES if one.name == table)
        for file in files_of(run_dir, each):
            Path(file).unlink()

    return remove


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_unexpected_runs_do_not_suit(spark: SparkSession, tmp_path: Path) -> None:
    (run, *_) = histories(tmp_path)
    names = {name for _, name in present_in([run])}
    seldom = SELDOM & names
    fits = Expected((seldom,))
    assert suits(spark, fits, [run])
    assert suits(spark, Expected((seldom, seldom)), [run])
    assert suits(spark, Expected((seldom, seldom | {"keyed_writes"})), [run])
    assert suits(spark, Expected((seldom | {"copies"},)), [run])
    assert not suits(spark, Expected((seldom | {"keyed_writes"},)), [run])
    assert not suits(spark, fits, [run, run])
    assert not suits(spark, Expected((seldom,), external=True), [run])
    assert not suits(spark, Expected((seldom - {"commits"},)), [run])
    assert not suits(spark, fits, [run], RunConfig(warm_up_us=1))
    expiring = RunConfig(producer_expiration_us=1)
    assert not suits(spark, fits, [run], expiring)
    assert suits(spark, Expected((seldom,), producer_expirations_us=(1,)), [run], expiring)
    (run / REMOTE_FILES).write_text("{}")
    assert not suits(spark, fits, [run])
    (run / REMOTE_FILES).unlink()
    without("latency")(run)
    assert "latency" in DECIDING
    assert not suits(spark, fits, [run])


def suits(spark: SparkSession, expected: Expected, run_dirs: list[Path], config: RunConfig | None = None) -> bool:
    with rehearsing(spark, expected) as rehearsed:
        return rehearsed.suits(run_dirs, JobConfig(runs=dict.fromkeys(range(len(run_dirs)), config or RunConfig())))
