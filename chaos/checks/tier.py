"""What the checks know of the remote tier: the objects in the store, and which segments nodes call copied.

An object's key ends with ``<20-digit base offset>-<segment ID>.<what it holds>``, below a folder that begins with the
partition's name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reference_broker.core.effects import Effect, Note

COPIED = "segment_copied"
NEEDED = ("log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint")
"""P-11: a segment is listed only after all these are stored. A transaction index is there only if there are markers."""


class CopiedSegment(NamedTuple):
    """What a node said when it had copied a segment: offsets [base, next) of ``partition``, such as ``hot-0``, the ID
    of the copy, and when the copy began by the node's clock."""

    partition: str
    segment_id: str
    base_offset: int
    next_offset: int
    began_ms: int

    @property
    def named(self) -> str:
        return f"{self.partition} from {self.base_offset} to {self.next_offset} (copy {self.segment_id})"

    def objects(self, tier: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns what is stored of it, by what it holds."""
        start = f"/{self.base_offset:020d}-{self.segment_id}."
        return {
            key.partition(start)[2]: data
            for key, data in tier.items()
            if start in key and key.startswith(f"{self.partition}-")
        }


def copied_in(effects: Sequence[Effect]) -> Iterator[CopiedSegment]:
    """Yields the segments that were copied, as one event's effects tell."""
    for effect in effects:
        if type(effect) is Note and effect.what == COPIED:
            told = dict(effect.fields)
            yield CopiedSegment(
                str(told["partition"]),
                str(told["segment_id"]),
                int(told["base_offset"]),
                int(told["next_offset"]),
                int(told["began_ms"]),
            )
