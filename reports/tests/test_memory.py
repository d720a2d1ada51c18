"""Judging leaves nothing behind in Java: judging run after run in one session needs no more memory."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.judge import compute_verdicts
from reports.tests.played import generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _held_for_python() -> int:
    """Objects that Java keeps because Python still names them."""
    from py4j.finalizer import ThreadSafeFinalizer

    return len(ThreadSafeFinalizer.finalizers)


@pytest.mark.nightly
def test_memory_of_judging_is_released(spark: "SparkSession", tmp_path: Path) -> None:
    """Without Python's own collector, which seldom looks at old objects in a large process."""
    run = generate(43).write(tmp_path / "run")
    compute_verdicts([run], spark)
    before = _held_for_python()
    gc.disable()
    try:
        compute_verdicts([run], spark)
        after = _held_for_python()
    finally:
        gc.enable()
    assert after - before < 100, "a judging names some thousands"
