"""What the jobs need to know beside the tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

MIN_EVICTION_MS = 120_000


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Of one run. ``cache_slots``: max.incremental.fetch.session.cache.slots; 0 = not known, not judged.
    ``first_min_eviction_ms``: min.incremental.fetch.session.eviction.ms, of sessions of KIP-227's first revision."""

    warm_up_us: int = 0
    cache_slots: int = 0
    first_min_eviction_ms: int = MIN_EVICTION_MS


@dataclass(frozen=True, slots=True)
class JobConfig:
    """``window_s``: length of "before" and "after" a fault. ``settle_s``: seconds after a fault's end that still count
    as "during", because operations that it hit end later. ``min_eviction_ms``: KIP-227's minimum before eviction
    in the final revision, where it is a constant. ``busy_permille`` wanted, ``working_permille`` had of a processor,
    and ``late_us``: a load worker with all three is its own limit.
    """

    window_s: int = 10
    settle_s: int = 1
    min_eviction_ms: int = MIN_EVICTION_MS
    busy_permille: int = 900
    working_permille: int = 500
    late_us: int = 100_000
    runs: Mapping[int, RunConfig] = field(default_factory=dict)

    def per_run(self, name: str, default: int = 0) -> Column:
        """A run's setting as a column expression over ``run``; its size does not grow with the runs when planned."""
        numbers = [F.lit(number) for run, config in self.runs.items() for number in (run, getattr(config, name))]
        if not numbers:
            return F.lit(default).cast("long")
        settings = F.create_map(*numbers)
        return F.coalesce(F.element_at(settings, F.col("run").cast("int")).cast("long"), F.lit(default).cast("long"))
