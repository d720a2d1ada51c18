"""Node 0 of the voters 0, 1 and 2 in each role, for tests of every role.

Its log ends at (2, 4), and its high watermark is 2. Most are in epoch 5; a candidate, a leader and a resigned leader
are in epoch 6.
"""

from collections.abc import Callable

from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests.quorum_alone import Alone, batch, granted
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey

SHORT_LOG = OffsetAndEpoch(0, 0)


def with_log() -> Alone:
    node = Alone().following(1, 4)
    node.respond_to_fetch(batch(0, 4, count=2), high_watermark=2)
    return node


def unattached() -> Alone:
    node = with_log()
    node.request_vote(2, 5, SHORT_LOG)
    return node


def voted() -> Alone:
    node = with_log()
    node.request_vote(2, 5, OffsetAndEpoch(2, 4))
    return node


def follower() -> Alone:
    node = with_log()
    node.begin(1, 5)
    return node


def voted_follower() -> Alone:
    node = voted()
    node.begin(1, 5)
    return node


def seeking(node: Alone) -> Alone:
    while node.quorum.role is not Role.PROSPECTIVE:
        node.take_requests(ApiKey.VOTE)
        node.pass_ms(50)
    return node


def prospective() -> Alone:
    return seeking(unattached())


def voted_prospective() -> Alone:
    return seeking(voted())


def prospective_with_leader() -> Alone:
    return seeking(follower())


def prospective_with_leader_and_vote() -> Alone:
    return seeking(voted_follower())


def granted_by_one(node: Alone) -> Alone:
    one = node.take_requests(ApiKey.VOTE)[0]
    one.replied(granted(one, True))
    return node


def candidate() -> Alone:
    return granted_by_one(prospective())


def leader() -> Alone:
    return granted_by_one(candidate())


def resigned() -> Alone:
    node = leader()
    node.quorum.resign("requested by the test")
    return node


State = Callable[[], Alone]
WITHOUT_LEADER = (unattached, voted, prospective, voted_prospective, candidate)
EVERY = (
    *WITHOUT_LEADER,
    follower,
    voted_follower,
    prospective_with_leader,
    prospective_with_leader_and_vote,
    leader,
    resigned,
)
ROLES = {
    unattached: Role.UNATTACHED,
    voted: Role.UNATTACHED,
    prospective: Role.PROSPECTIVE,
    voted_prospective: Role.PROSPECTIVE,
    candidate: Role.CANDIDATE,
    follower: Role.FOLLOWER,
    voted_follower: Role.FOLLOWER,
    prospective_with_leader: Role.PROSPECTIVE,
    prospective_with_leader_and_vote: Role.PROSPECTIVE,
    leader: Role.LEADER,
    resigned: Role.RESIGNED,
}
