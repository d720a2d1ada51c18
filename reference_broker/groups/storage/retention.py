"""When to look at a group for offsets that are too old (KIP-211), without a look at the other groups.

Each group stands under the earliest time at which it could lose an offset. At that time ``offsets.cleaning`` looks at
the group and plans its next look. So a check costs only what is due, and groups at rest cost nothing.
"""

from reference_broker.coordination.scheduling import DueTimes

MS_PER_MINUTE = 60_000


class Retention(DueTimes):
    """The looks that are planned for the groups of one partition."""

    def __init__(self, retention_minutes: int) -> None:
        super().__init__()
        self.retention_ms = retention_minutes * MS_PER_MINUTE
        """offsets.retention.minutes"""
