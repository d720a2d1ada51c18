"""Removes one remote segment: it is written that its deletion has begun, its objects are deleted, and it is written
that they are gone (KIP-405). Whoever finds a deletion that was begun goes on with it, so a crash leaves nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from reference_broker.ports.node_ports import StorePorts
from reference_broker.ports.store import Delete, StoreFailure
from reference_broker.remote_log.metadata.events import RemoteSegment, update_of
from reference_broker.remote_log.metadata.remote_log_metadata import RemoteLogMetadata
from reference_broker.remote_log.metadata.states import SegmentState
from reference_broker.remote_log.objects import keys_of
from reference_broker.wire.errors import Error, ErrorCode, error_name


@dataclass(frozen=True, slots=True)
class Removal:
    """Removes segments in the name of the leader of ``leader_epoch``. ``may_go_on`` is asked before each step."""

    ports: StorePorts
    metadata: RemoteLogMetadata
    node_id: int
    leader_epoch: int
    may_go_on: Callable[[], bool]

    def remove(self, segment: RemoteSegment, ended: Callable[[str], None]) -> None:
        """``ended`` is told an empty text when the segment is gone, or when there is nothing to do for it: then it is
        not in the state that it was in. Else it is told why not; what is left is found again. It is not called if this
        may not go on."""

        def begun(error: Error) -> None:
            if not self.may_go_on():
                return
            if error is ErrorCode.none:
                self.ports.store(Delete(keys_of(segment)), lambda _: deleted(), failed)
            elif error in (ErrorCode.resource_not_found, ErrorCode.invalid_request):
                ended("")
            else:
                ended(f"the begin of a deletion was not written: {error_name(error)}")

        def failed(failure: StoreFailure) -> None:
            if self.may_go_on():
                ended(f"{failure.kind}: {failure.reason}")

        def deleted() -> None:
            if self.may_go_on():
                self._write(segment, SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED, written)

        def written(error: Error) -> None:
            if not self.may_go_on():
                return
            is_over = error in (ErrorCode.none, ErrorCode.resource_not_found)
            ended("" if is_over else f"the end of a deletion was not written: {error_name(error)}")

        if segment.state is SegmentState.DELETE_SEGMENT_STARTED:
            begun(ErrorCode.none)
        else:
            self._write(segment, segment.state, SegmentState.DELETE_SEGMENT_STARTED, begun)

    def _write(
        self, segment: RemoteSegment, before: SegmentState, after: SegmentState, done: Callable[[Error], None]
    ) -> None:
        now_ms = self.ports.now().wall_ms
        event = update_of(replace(segment, state=before), after, self.node_id, self.leader_epoch, now_ms)
        self.metadata.write(event, done)
