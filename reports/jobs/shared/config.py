"""What the jobs need to know that the tables do not say."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of one run. ``foreign`` is 1 if its broker is not ours."""

    warm_up_us: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The settings of the jobs.

    ``window_s`` is the length of "before" and of "after" a fault. ``settle_s`` counts the seconds after a fault's end
    that still belong to "during", because operations that the fault hit end later. ``calm_after_s`` counts those after
    which it is outside faults again, because those that were held up have been sent by then. In the first ``begin_s``
    seconds of the load clients connect and join, so these are not outside faults either. A load worker is its own limit
    if it wanted ``busy_permille`` of a processor, had ``working_permille`` of it, and its timer was ``late_us`` late.
    Where runs are compared, each is cut into ``blocks``.
    """

    window_s: int = 10
    settle_s: int = 1
    calm_after_s: int = 4
    begin_s: int = 2
    busy_permille: int = 900
    working_permille: int = 500
    late_us: int = 100_000
    blocks: int = 1
    runs: Mapping[int, RunConfig] = field(default_factory=dict)

    def per_run(self, name: str) -> Column:
        """A run's setting as a column expression over ``run``. More runs do not make its plan larger."""
        settings = [F.lit(number) for run, config in self.runs.items() for number in (run, getattr(config, name))]
        return F.element_at(F.create_map(*settings), F.col("run").cast("int")).cast("long")
