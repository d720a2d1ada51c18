"""A test's change of one partition for the controller's queue."""

from dataclasses import dataclass

from reference_broker.controller.planning.partition_changes import NO_LEADER_CHANGE, is_active
from reference_broker.controller.write_operations import ApiError, ControllerWriteOperation, PlanContext, Records
from reference_broker.metadata.image import NO_LEADER
from reference_broker.metadata.records import PartitionChangeRecord
from reference_broker.wire.errors import ErrorCode


@dataclass(slots=True)
class PartitionStateChange(ControllerWriteOperation[ApiError | None]):
    """Another leader or none, or fewer replicas in sync."""

    name = "change a partition for a test"
    atomic = False

    topic: str
    partition: int
    leader: int | None
    """A replica in sync, NO_LEADER, or None if the leader stays."""
    isr: tuple[int, ...] | None
    """A part of the in-sync replicas with the leader that there was, or None if they stay."""
    _refusal: ApiError | None = None

    def plan(self, context: PlanContext) -> Records:
        topic = context.latest.topics.get(self.topic)
        if topic is None:
            return self._refuse(f"{self.topic} was deleted")
        state = topic.partitions[self.partition]
        where = f"{self.topic}-{self.partition}"
        is_replica = self.leader not in (None, NO_LEADER)
        if is_replica and (self.leader not in state.isr or not is_active(context.latest, self.leader)):
            return self._refuse(f"node {self.leader} is not in sync at {where}, whose ISR is {list(state.isr)}")
        if self.isr is not None and not (state.leader in self.isr and set(self.isr) <= set(state.isr)):
            return self._refuse(f"the ISR of {where} is {list(state.isr)}, and its leader {state.leader} stays in it")
        leader = state.leader if self.leader is None else self.leader
        return [
            PartitionChangeRecord(
                partition_id=self.partition,
                topic_id=topic.topic_id,
                isr=self.isr,
                leader=NO_LEADER_CHANGE if self.leader is None else leader,
            )
        ]

    def _refuse(self, reason: str) -> Records:
        self._refusal = ApiError(ErrorCode.invalid_request, reason)
        return ()

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused or self._refusal
