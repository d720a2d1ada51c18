"""Which role may follow which (Kafka's QuorumState; KIP-595 and KIP-996)."""

from collections.abc import Mapping

from reference_broker.quorum.values import Role

IN_A_NEWER_EPOCH = (Role.UNATTACHED, Role.FOLLOWER)
"""Every role ends in one of these when the node learns of a newer epoch."""

OF_A_VOTER: Mapping[Role, tuple[Role, ...]] = {
    Role.UNATTACHED: (Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE),
    Role.FOLLOWER: (Role.PROSPECTIVE,),
    Role.PROSPECTIVE: (Role.UNATTACHED, Role.FOLLOWER),
    Role.CANDIDATE: (Role.FOLLOWER, Role.PROSPECTIVE, Role.LEADER),
    Role.LEADER: (Role.RESIGNED,),
    Role.RESIGNED: (Role.PROSPECTIVE,),
}
"""The changes within one epoch. An unattached voter stays unattached when it grants its vote."""

OF_AN_OBSERVER: Mapping[Role, tuple[Role, ...]] = {
    Role.UNATTACHED: (Role.UNATTACHED, Role.FOLLOWER),
    Role.FOLLOWER: (Role.UNATTACHED,),
}


def may_follow(before: Role, after: Role, epochs: int, is_voter: bool) -> bool:
    """Whether ``after`` may follow ``before``. ``epochs`` says by how much the epoch increases with the change.

    A node leads, resigns or asks for pre-votes only in the epoch in which it is. It becomes a candidate in the next
    one, and only after pre-votes.
    """
    if after is Role.CANDIDATE:
        return is_voter and before is Role.PROSPECTIVE and epochs == 1
    if epochs > 0:
        return after in IN_A_NEWER_EPOCH
    return epochs == 0 and after in (OF_A_VOTER if is_voter else OF_AN_OBSERVER).get(before, ())
