"""What the jobs need to know beside the tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Of one run. ``cache_slots``: max.incremental.fetch.session.cache.slots; 0 = not known, not judged."""

    warm_up_us: int = 0
    cache_slots: int = 0


@dataclass(frozen=True, slots=True)
class JobConfig:
    """``window_s``: length of "before" and "after" a fault. ``settle_s``: seconds after a fault's end that still count
    as "during", because operations that it hit end later. ``min_eviction_ms``: KIP-227's minimum before eviction.
    """

    window_s: int = 10
    settle_s: int = 1
    min_eviction_ms: int = 120_000
    runs: Mapping[int, RunConfig] = field(default_factory=dict)

    def per_run(self, name: str, default: int = 0) -> Column:
        """A run's setting as a column expression over ``run``."""
        value = F.lit(default).cast("long")
        for run, config in self.runs.items():
            value = F.when(F.col("run") == run, F.lit(getattr(config, name)).cast("long")).otherwise(value)
        return value
