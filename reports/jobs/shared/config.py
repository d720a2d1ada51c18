"""What the jobs need to know that the tables do not say."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

MIN_EVICTION_MS = 120_000


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of one run.

    ``cache_slots`` is max.incremental.fetch.session.cache.slots; 0 means that it is not known, so it is not judged.
    ``first_min_eviction_ms`` is min.incremental.fetch.session.eviction.ms, for sessions of KIP-227's first revision.
    """

    warm_up_us: int = 0
    cache_slots: int = 0
    first_min_eviction_ms: int = MIN_EVICTION_MS


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The settings of the jobs.

    ``window_s`` is the length of "before" and of "after" a fault. ``settle_s`` counts the seconds after a fault's end
    that still belong to "during", because operations that the fault hit end later. ``min_eviction_ms`` is KIP-227's
    minimum before eviction in the final revision, where it is a constant. A load worker is its own limit if it wanted
    ``busy_permille`` of a processor, had ``working_permille`` of it, and its timer was ``late_us`` late.
    """

    window_s: int = 10
    settle_s: int = 1
    min_eviction_ms: int = MIN_EVICTION_MS
    busy_permille: int = 900
    working_permille: int = 500
    late_us: int = 100_000
    runs: Mapping[int, RunConfig] = field(default_factory=dict)

    def per_run(self, name: str) -> Column:
        """A run's setting as a column expression over ``run``. More runs do not make its plan larger."""
        settings = [F.lit(number) for run, config in self.runs.items() for number in (run, getattr(config, name))]
        return F.element_at(F.create_map(*settings), F.col("run").cast("int")).cast("long")
