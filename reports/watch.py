"""Verdicts during a run (`crucible judge --watch`)."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reports.errors import SetupError
from reports.judge import compute_verdicts
from reports.manifest import MANIFEST_NAME
from reports.spark import LARGE_HISTORY_BYTES, spark_session
from reports.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.early import EarlyVerdict, TakeTrace

EVERY_S = 60.0
LOOKS_EVERY_S = 0.5
"""Interval at which the watcher checks whether the run has ended."""


@dataclass(slots=True)
class Watch:
    """Early verdicts of a run that is being played."""

    run_dir: Path
    take_trace: "TakeTrace"
    """As in ``early.py``."""
    expiration_us: Callable[[], int | None]
    """Returns how long the brokers keep the ID of an idle producer, or None once the run's folder does not say it any
    more."""
    say: Callable[[str], None]
    """Gets a line for each look, and one for each guarantee that is violated."""
    every_s: float = EVERY_S
    known_us: int | None = None
    """The last known result of ``expiration_us``."""
    broken: dict[str, str] = field(default_factory=dict)
    """The violated guarantees, each with the detail of its first violation."""

    def until_red_or_ended(self, fail_fast: bool) -> list[Verdict]:
        """Watch until the run has ended, and return its whole verdict. With ``fail_fast`` it ends with the first
        guarantee that is broken, and returns no verdict. Raise SetupError without a run or without Spark."""
        if not self.run_dir.is_dir():
            raise SetupError(f"There is no folder {self.run_dir}: start the run first, and give its folder.")
        with spark_session("crucible-watch", LARGE_HISTORY_BYTES) as spark, tempfile.TemporaryDirectory() as scratch:
            while not self._ended:
                began_s = time.monotonic()
                self._look(Path(scratch), spark)
                if fail_fast and self.broken:
                    return []
                while not self._ended and time.monotonic() - began_s < self.every_s:
                    time.sleep(LOOKS_EVERY_S)
            return compute_verdicts([self.run_dir], spark)

    @property
    def _ended(self) -> bool:
        return (self.run_dir / MANIFEST_NAME).exists()

    def _look(self, scratch: Path, spark: "SparkSession") -> None:
        from reports.early import early_verdict
        from reports.read_tables import RunConfig

        began_s = time.monotonic()
        self.known_us = self.expiration_us() or self.known_us
        config = RunConfig() if self.known_us is None else RunConfig(producer_expiration_us=self.known_us)
        seen = early_verdict(self.run_dir, scratch, spark, self.take_trace, config)
        if seen is None:
            self.say("no part of the history is whole yet")
        else:
            self._tell(seen, time.monotonic() - began_s)

    def _tell(self, seen: "EarlyVerdict", took_s: float) -> None:
        for violation in seen.violations:
            if violation.guarantee not in self.broken:
                self.broken[violation.guarantee] = violation.detail
                self.say(f"RED: {violation.guarantee} was broken at {violation.at_us / 1e6:.3f} s: {violation.detail}")
        names = ", ".join(self.broken)
        state = f"{names} broken" if names else f"none of {len(seen.judged)} guarantees is broken"
        self.say(f"up to {seen.until_us / 1e6:.0f} s: {state} ({seen.operations:,} operations, in {took_s:.0f} s)")
