"""The two times that every step of the deterministic part is given. Nothing in that part reads a clock."""

from typing import NamedTuple


class Now(NamedTuple):
    """One instant as the driver saw it.

    ``mono_us`` is monotonic time in microseconds, with an arbitrary origin. Deadlines and waits use it.
    ``wall_ms`` is Unix time in milliseconds, and may step either way. Timestamps and expiry use it.
    """

    mono_us: int
    wall_ms: int
