"""Settings that Kafka also takes in a coarser unit."""

from collections.abc import Mapping
from dataclasses import dataclass

from reference_broker.configuration.setting import INT_MAX, LONG_MAX, ConfigKey, Kind


@dataclass(frozen=True, slots=True)
class OtherUnit:
    """A setting that sets the same as ``stands_for``, in another unit. Its value times ``factor`` is in the unit of
    ``stands_for``."""

    key: ConfigKey
    stands_for: str
    factor: int


def _other(name: str, stands_for: str, factor: int) -> tuple[str, OtherUnit]:
    key = ConfigKey(name, Kind.INT, -1, f"{stands_for} in another unit.", at_least=-1, at_most=INT_MAX)
    return name, OtherUnit(key, stands_for, factor)


OTHER_UNITS: Mapping[str, OtherUnit] = dict(
    (
        _other("log.retention.minutes", "log.retention.ms", 60_000),
        _other("log.retention.hours", "log.retention.ms", 3_600_000),
        _other("log.roll.hours", "log.roll.ms", 3_600_000),
        _other("log.roll.jitter.hours", "log.roll.jitter.ms", 3_600_000),
    )
)
"""The settings in coarser units. The finer of two units comes first, because it wins."""

assert INT_MAX * 3_600_000 < LONG_MAX
