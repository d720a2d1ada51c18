"""One attempt to copy a segment to the tier, as a value (P-11).

The segment's beginning is written to the metadata first, so that nobody misses an object that a crash leaves behind.
Then its objects are stored, one after the other. Only when all are stored is it written that the copy is finished.
That lists the segment. A failure ends the attempt. The next one has another segment ID.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, TypeAlias

from reference_broker.log.producer_replay import Recreated
from reference_broker.log.segments import TierableSegment
from reference_broker.ports.store import Put, PutFile
from reference_broker.remote_log.metadata.events import RemoteSegment


class Stage(Enum):
    """What an attempt does next. It has ended in the last three."""

    PREPARING = auto()
    """It gathers what is to be stored: index files, the snapshot of producers, leader epochs."""
    BEGINNING = auto()
    """It writes COPY_SEGMENT_STARTED."""
    STORING = auto()
    """It stores the first of the objects that are left."""
    FINISHING = auto()
    """It writes COPY_SEGMENT_FINISHED."""
    LISTED = auto()
    FAILED = auto()
    RESIGNED = auto()
    """This node does not lead the partition any more in the leader epoch of the attempt."""


NEXT_STAGES: Final[Mapping[Stage, tuple[Stage, ...]]] = {
    Stage.PREPARING: (Stage.BEGINNING, Stage.FAILED, Stage.RESIGNED),
    Stage.BEGINNING: (Stage.STORING, Stage.FAILED, Stage.RESIGNED),
    Stage.STORING: (Stage.STORING, Stage.FINISHING, Stage.FAILED, Stage.RESIGNED),
    Stage.FINISHING: (Stage.LISTED, Stage.FAILED, Stage.RESIGNED),
    Stage.LISTED: (),
    Stage.FAILED: (),
    Stage.RESIGNED: (),
}

ENDED: Final = (Stage.LISTED, Stage.FAILED, Stage.RESIGNED)
Objects: TypeAlias = tuple[Put | PutFile, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a copy stores: the segment as it is told to the metadata, and its objects in their order. ``recreated`` is
    the snapshot of producers among them if the log lacked it."""

    segment: RemoteSegment
    objects: Objects
    recreated: Recreated | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """``local`` is copied under ``leader_epoch``. ``prepared`` is None until that is done. ``stored`` objects of it are
    in the store. ``reason`` says why it failed."""

    local: TierableSegment
    leader_epoch: int
    stage: Stage = Stage.PREPARING
    prepared: Prepared | None = None
    stored: int = 0
    reason: str = ""

    @property
    def segment(self) -> RemoteSegment:
        """The segment, once it is prepared."""
        assert self.prepared is not None, "the copy is not prepared"
        return self.prepared.segment

    @property
    def next_object(self) -> Put | PutFile:
        """The object that is to be stored now."""
        assert self.stage is Stage.STORING, f"nothing is stored while {self.stage.name}"
        assert self.prepared is not None, "nothing is prepared"
        return self.prepared.objects[self.stored]

    def with_objects(self, prepared: Prepared) -> "Copy":
        """What is to be stored is known."""
        return replace(self._at(Stage.BEGINNING), prepared=prepared)

    def done(self) -> "Copy":
        """What the stage was to do is done."""
        if self.stage is Stage.BEGINNING:
            return self._at(Stage.STORING)
        if self.stage is Stage.FINISHING:
            return self._at(Stage.LISTED)
        assert self.prepared is not None, "nothing is prepared"
        stored = self.stored + 1
        is_last = stored == len(self.prepared.objects)
        return replace(self._at(Stage.FINISHING if is_last else Stage.STORING), stored=stored)

    def failed(self, reason: str) -> "Copy":
        return replace(self._at(Stage.FAILED), reason=reason)

    def resigned(self) -> "Copy":
        return self._at(Stage.RESIGNED)

    def _at(self, stage: Stage) -> "Copy":
        assert stage in NEXT_STAGES[self.stage], f"{stage.name} cannot follow on {self.stage.name}"
        return replace(self, stage=stage)
