"""The two times that every step of the deterministic part is given; nothing here reads a clock."""

from typing import NamedTuple


class Now(NamedTuple):
    """One instant as the driver saw it.

    ``mono_us``: monotonic, microseconds, arbitrary origin; deadlines and waits use it.
    ``wall_ms``: Unix time, milliseconds, may step either way; timestamps and expiry use it.
    """

    mono_us: int
    wall_ms: int
