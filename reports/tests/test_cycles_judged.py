"""The Spark job of dependency-cycle finds planted circles, and in drawn histories what force finds."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from reports.jobs.transaction_isolation import dependency_cycle
from reports.read_tables import JobConfig, reading
from reports.spark import SMALL_HISTORY_BYTES, sized_for
from reports.tests.history import History
from reports.tests.planted_cycles import PLANTED, closed_at, drawn, planted, serial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DRAWN = {f"drawn {seed}": drawn(Random(seed)) for seed in range(8)}
SERIAL = {f"serial {seed}": serial(Random(seed)) for seed in range(3)}
OTHER_NAMES = {"both ways": "G1c-realtime"}
"""Cases in which the job names another cycle than the check: it looks for none that needs no time."""

Violation = Mapping[str, object]


@pytest.fixture(scope="module")
def found(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Violation]]:
    """The violations of each history, the earliest first. All are judged together, which saves planning."""
    return judged(spark, tmp_path_factory.mktemp("runs"))


def judged(spark: "SparkSession", root: Path, history_bytes: int = 0) -> dict[str, list[Violation]]:
    histories: dict[str, History] = {name: planted(name) for name in PLANTED} | DRAWN | SERIAL
    folders = [history.write(root / name.replace(" ", "_")) for name, history in histories.items()]
    with sized_for(spark, history_bytes), reading(spark, folders, JobConfig()) as tables:
        rows = [row.asDict() for row in dependency_cycle.find(tables).collect()]
    rows.sort(key=lambda row: (row["at_us"], row["detail"]))
    return {name: [row for row in rows if row["run"] == run] for run, name in enumerate(histories)}


@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_circle_is_found(found: dict[str, list[Violation]], name: str) -> None:
    _, circle, at_us = PLANTED[name]
    mine = found[name]
    assert [mine[0]["at_us"]] == [at_us] if circle else not mine, mine
    if circle:
        assert str(mine[0]["detail"]).partition(":")[0] == OTHER_NAMES.get(name, circle)


def test_violation_names_contradicting_operations(found: dict[str, list[Violation]]) -> None:
    assert [row["detail"] for row in found["sends"]] == [
        "G0-realtime: operation 0 of b began at 20 us, but its value 10 of b is at offset 2. Value 2 of a, at "
        "offset 7, had been acknowledged to a at 10 us (operation 0)."
    ]


def test_random_histories_match_brute_force(found: dict[str, list[Violation]]) -> None:
    moments = {name: closed_at(history) for name, history in DRAWN.items()}
    assert {name: found[name][0]["at_us"] if found[name] else -1 for name in DRAWN} == moments
    assert -1 in moments.values()
    assert sum(moment >= 0 for moment in moments.values()) > len(DRAWN) // 5


def test_serial_executions_have_no_circle(found: dict[str, list[Violation]]) -> None:
    assert not [found[name] for name in SERIAL if found[name]]


@pytest.mark.nightly
def test_large_history_has_same_verdicts(
    spark: "SparkSession", found: dict[str, list[Violation]], tmp_path: Path
) -> None:
    assert judged(spark, tmp_path, SMALL_HISTORY_BYTES + 1) == found
