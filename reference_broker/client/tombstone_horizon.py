"""When a fetcher may have missed tombstones, and begins again (KIP-630's rejected alternative; H-3 to H-7).

Followers and consumers hear with each answer below which offset tombstones may be gone. Whoever reads on below that
offset may keep records whose tombstones it never sees. So it forgets all that it has read and begins at the start of
the log. This bootstrap is unsafe if more tombstones go meanwhile. The fetcher remembers the marker for as long as it is
below it, and begins again if the marker has moved.
"""


def remembered_after(position: int, horizon: int) -> int:
    """Returns the marker that a fetcher remembers after an answer to its fetch from ``position``; 0 in its normal mode.
    If that is more than it remembered before, the fetcher takes nothing of the answer and begins again.

    ``horizon`` is that of the replica which answered. What was read from another replica with a smaller marker may need
    tombstones that this one lacks. So a marker that comes back after a smaller one counts as moved.
    """
    return horizon if position < horizon else 0
