from chaos.checks.replica_view import ReplicaCheck, Replicated
from reference_broker.metadata.image import NO_LEADER
from reference_broker.metadata.uuids import LOST_DIRECTORY


class ReplicasConverge(ReplicaCheck):
    """replicas-converge: after the heal each partition has a leader, and all its replicas are in sync and alike.

    ``World`` asks ``reached`` after the heal, and calls ``overdue`` if the time is over before that.
    """

    guarantee = "replicas-converge"

    def reached(self) -> bool:
        return all(_is_settled(each) for each in self.replicas.partitions.values())

    def overdue(self, at_us: int, after_us: int) -> None:
        for each in self.replicas.partitions.values():
            if not _is_settled(each):
                held = {copy.node_id: copy.held.end_offset for copy in each.copies.values()}
                self.violated(
                    at_us,
                    f"{each.name}: {after_us // 1_000_000} s after all was healed leader {each.state.leader} has "
                    f"in-sync replicas {each.state.isr} of {each.state.replicas}, whose logs end at {held}",
                )


def _waits_for_an_operator(partition: Replicated) -> bool:
    """E-3, E-6: only an eligible replica may be elected, and only where it has its directory. E-5: another one is, when
    nobody is eligible any more. So nobody leads while all that are eligible have lost their directories, which were
    really damaged (E-7). To be killed, or to lose the power, damages none.

    An operator decides by an unclean election."""
    state = partition.state
    homes = dict(zip(state.replicas, state.directories, strict=False))
    are_lost = all(homes.get(one) == LOST_DIRECTORY and one in partition.eligible.damaged for one in state.elr)
    return state.leader == NO_LEADER and not state.isr and bool(state.elr) and are_lost


def _is_settled(partition: Replicated) -> bool:
    state = partition.state
    if _waits_for_an_operator(partition):
        return True
    if len(state.isr) < len(state.replicas) or state.leader < 0:
        return False
    if not partition.copies:
        return True  # Physical: no node has touched its log since the view began, so there is nothing to compare.
    leader = partition.copies.get(state.leader)
    if leader is None or leader.log is None:
        return False
    end = leader.held.end_offset
    return all(copy.held.end_offset == end and copy.held.high_watermark == end for copy in partition.copies.values())
