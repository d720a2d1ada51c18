"""While a run goes on, its history is not red unless the whole one is, and red as soon as it shows a violation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from reports.tests.cuts import end_us, part_of
from reports.tests.history import History, Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SHORT = Shape(rate_per_s=8)
VIOLATIONS = (
    "inconsistent-offsets",
    "corrupt-value",
    "poll-skip",
    "nonmonotonic-poll",
    "int-poll-skip",
    "int-nonmonotonic-poll",
    "nonmonotonic-send",
)
"""Planted violations that an operation shows at its end."""


def broken_in(parts: Sequence[History], root: Path, spark: "SparkSession") -> list[dict[str, int]]:
    """Judge parts of histories early. Return for each the guarantees that are broken, with the time of the first
    violation."""
    from pyspark.sql import functions as F  # noqa: N812

    from reports.early import early_jobs, reading_part, violations_of
    from reports.read_tables import RunConfig
    from reports.spark import sized_for

    folders = [part.write(root / str(number)) for number, part in enumerate(parts)]
    found: list[dict[str, int]] = [{} for _ in parts]
    configs = [RunConfig(producer_expiration_us=part.manifest().producer_expiration_us) for part in parts]
    with sized_for(spark, 0), reading_part(spark, folders, configs) as tables:
        for job in early_jobs(tables):
            for row in violations_of(job, tables).groupBy("run").agg(F.min("at_us").alias("at_us")).collect():
                found[row["run"]][job.name] = row["at_us"]
    return found


def at_random(history: History, random: Random) -> History:
    """Each process has recorded up to a moment of its own, and the nodes at least as far."""
    last = end_us(history)
    moments: dict[str, int] = {}

    def moment(process: str) -> int:
        return moments.setdefault(process, random.randrange(last))

    part_of(history, moment, 0)
    return part_of(history, moment, max(moments.values()))


def legal_histories() -> Mapping[str, History]:
    from reports.tests.played import generate
    from reports.tests.test_judge_finds_anomalies import PLANTED

    legal = {}
    for number, (name, (plant, broken)) in enumerate(PLANTED.items()):
        if not broken:
            legal[name] = generate(number, SHORT)
            plant(legal[name])
    return legal


def clean_parts(parts_of_each: int, seed: int) -> list[tuple[str, History]]:
    random = Random(seed)
    legal = legal_histories().items()
    return [(name, at_random(history, random)) for name, history in legal for _ in range(parts_of_each)]


def with_bad_records() -> list[History]:
    """Histories with a lost record that fetchers have jumped over, with one up to which none has read so far, and with
    a record that is there twice, without and with a short expiration of producer IDs."""
    from reports.tests.played import generate
    from reports.tests.test_judge_finds_anomalies import plant_duplicate, plant_lost_write, plant_unseen

    lost, unseen, twice, expired = (generate(seed, SHORT) for seed in (1, 2, 3, 3))
    plant_lost_write(lost)
    plant_unseen(unseen)
    plant_duplicate(twice)
    plant_duplicate(expired)
    expired.config["producer.id.expiration.ms"] = "5000"
    return [part_of(each, lambda _: 1 << 60, 1 << 60) for each in (lost, unseen, twice, expired)]


@pytest.fixture(scope="module")
def found(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple[Mapping[str, dict[str, int]], Sequence[dict[str, int]]]:
    """The guarantees that are broken in parts of clean histories, by name, and in those with bad records. All are
    judged together, which saves planning."""
    clean = clean_parts(1, 1)
    broken = broken_in([*(part for _, part in clean), *with_bad_records()], tmp_path_factory.mktemp("parts"), spark)
    return {name: each for (name, _), each in zip(clean, broken, strict=False)}, broken[len(clean) :]


def test_part_of_a_clean_history_is_never_red(
    found: tuple[Mapping[str, dict[str, int]], Sequence[dict[str, int]]],
) -> None:
    clean, _ = found
    assert clean
    assert not {name: broken for name, broken in clean.items() if broken}


@pytest.mark.nightly
def test_none_of_many_parts_of_clean_histories_is_red(spark: "SparkSession", tmp_path: Path) -> None:
    named = clean_parts(6, 2)
    broken = broken_in([part for _, part in named], tmp_path, spark)
    assert not {name: each for (name, _), each in zip(named, broken, strict=True) if each}


@pytest.mark.nightly
def test_violation_is_red_in_the_first_part_that_holds_it(spark: "SparkSession", tmp_path: Path) -> None:
    from reports.tests.played import generate
    from reports.tests.test_judge_finds_anomalies import PLANTED

    histories = []
    for number, name in enumerate(VIOLATIONS):
        histories.append(generate(number, SHORT))
        PLANTED[name][0](histories[-1])
    last_us = max(map(end_us, histories))
    whole = broken_in(
        [part_of(history, lambda _: last_us, last_us) for history in histories], tmp_path / "whole", spark
    )
    assert [set(each) for each in whole] == [{name} for name in VIOLATIONS]
    shown_us = [each[name] for each, name in zip(whole, VIOLATIONS, strict=True)]
    for late_us, expected in ((0, [{name} for name in VIOLATIONS]), (1, [set() for _ in VIOLATIONS])):
        parts = [
            part_of(history, lambda _, until_us=at_us - late_us: until_us, last_us)  # type: ignore[misc]
            for history, at_us in zip(histories, shown_us, strict=True)
        ]
        assert [set(each) for each in broken_in(parts, tmp_path / str(late_us), spark)] == expected


def test_lost_record_is_red_once_a_fetcher_has_jumped_over_it(
    found: tuple[Mapping[str, dict[str, int]], Sequence[dict[str, int]]],
) -> None:
    assert [set(each) for each in found[1][:2]] == [{"lost-write"}, set()]


def test_duplicate_is_red_at_once_unless_its_producer_may_have_expired(
    found: tuple[Mapping[str, dict[str, int]], Sequence[dict[str, int]]],
) -> None:
    assert [set(each) for each in found[1][2:]] == [{"duplicate"}, set()]
