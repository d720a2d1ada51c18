"""Command-line options that workload files lack."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.load.driver import Driver
from bench.load.workload import Workload


class LoadError(Exception):
    """A workload cannot be played, or its run failed. The message is one sentence."""


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of the command line and the driver file. None leaves the value to the workload."""

    records_per_s: float | None = None
    seconds: float | None = None
    warmup_s: float | None = None
    workers: int = 1  # started here
    joining: int = 0  # workers that somebody starts elsewhere (``worker.py``)
    listen: tuple[str, int] | None = None  # where they join; None: loopback, and any free port
    replication: int = 1
    acks: int = -1
    idempotent: bool = True
    compression: str = "none"
    client: str | None = None
    driver: Driver = field(default_factory=Driver)


def client_of(workload: Workload, options: LoadOptions) -> str:
    return options.client or workload.crucible.client


def rate_of(workload: Workload, options: LoadOptions) -> float:
    """Return records a second of all producers together; 0: as much as the responses allow."""
    return workload.producer_rate if options.records_per_s is None else options.records_per_s


def topic_settings(workload: Workload, options: LoadOptions) -> dict[str, str]:
    """Return the settings of the topics. The workload's own come before the driver file's."""
    return {**options.driver.topic_settings, **workload.crucible.topic_settings}


def durations_s(workload: Workload, options: LoadOptions) -> tuple[float, float]:
    """Return how long warm-up and load last."""
    return (
        workload.warmup_duration_minutes * 60 if options.warmup_s is None else options.warmup_s,
        workload.test_duration_minutes * 60 if options.seconds is None else options.seconds,
    )


def local_workers(workload: Workload, options: LoadOptions) -> int:
    """Return how many workers are started here: no more than there are clients, and one if nobody joins."""
    least = 0 if options.joining else 1
    return max(least, min(options.workers, workload.clients - options.joining))
