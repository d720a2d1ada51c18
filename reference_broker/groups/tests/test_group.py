"""The state of a group by itself, as Kafka's ClassicGroupTest asserts."""

from collections.abc import Iterable

import pytest

from reference_broker.groups.classic_requests import JoinResponse, MemberProtocol, SyncResponse
from reference_broker.groups.group import VALID_PREVIOUS_STATES, Group, GroupState, Member, subscribed_topics
from reference_broker.wire.errors import ErrorCode

NOW_MS = 1_700_000_000_000


def member(member_id: str, *protocols: str, instance: str | None = None, metadata: bytes = b"") -> Member:
    known = tuple(MemberProtocol(each, metadata) for each in protocols or ("range",))
    return Member(member_id, instance, "client", "/host", 60_000, 10_000, known)


def group_of(*members: Member, protocol_type: str = "consumer") -> Group:
    group = Group("g", NOW_MS, protocol_type=protocol_type)
    for each in members:
        group.add(each)
    return group


def stable(*members: Member, protocol_type: str = "consumer") -> Group:
    group = group_of(*members, protocol_type=protocol_type)
    group.begin_rebalance(NOW_MS + 1)
    group.init_next_generation(NOW_MS + 2)
    group.become_stable(NOW_MS + 3)
    return group


def ignore_response(response: object) -> None:
    """Respond to a request of which the test needs no response."""


def subscription(topics: Iterable[str], version: int = 0, rest: bytes = b"\xff\xff\xff\xff") -> bytes:
    names = [each.encode() for each in topics]
    packed = b"".join(len(each).to_bytes(2, "big") + each for each in names)
    return version.to_bytes(2, "big") + len(names).to_bytes(4, "big") + packed + rest


# --- transitions ----------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "ClassicGroupTest.testStableToPreparingRebalanceTransition",
    "ClassicGroupTest.testAwaitingRebalanceToStableTransition",
    "ClassicGroupTest.testEmptyToStableIllegalTransition",
    "ClassicGroupTest.testStableToStableIllegalTransition",
    "ClassicGroupTest.testEmptyToAwaitingRebalanceIllegalTransition",
    "ClassicGroupTest.testPreparingRebalanceToPreparingRebalanceIllegalTransition",
    "ClassicGroupTest.testDeadToPreparingRebalanceIllegalTransition",
    "ClassicGroupTest.testPreparingRebalanceToEmptyTransition",
    "ClassicGroupTest.testEmptyToDeadTransition",
)
@pytest.mark.parametrize("after", GroupState)
@pytest.mark.parametrize("before", GroupState)
def test_transition_between_each_pair_of_states(before: GroupState, after: GroupState) -> None:
    allowed = {
        ("Empty", "PreparingRebalance"),
        ("PreparingRebalance", "CompletingRebalance"),
        ("PreparingRebalance", "Empty"),
        ("CompletingRebalance", "Stable"),
        ("CompletingRebalance", "PreparingRebalance"),
        ("Stable", "PreparingRebalance"),
        *((each.value, "Dead") for each in GroupState),
    }
    assert (before in VALID_PREVIOUS_STATES[after]) is ((before.value, after.value) in allowed)


def test_transition_missing_in_table_raises_assertion_error() -> None:
    group = group_of(member("m"))
    with pytest.raises(AssertionError, match="is Empty and cannot become Stable"):
        group.become_stable(NOW_MS)


@pytest.mark.clause(
    "ClassicGroupTest.testCanRebalanceWhenStable",
    "ClassicGroupTest.testCanRebalanceWhenCompletingRebalance",
    "ClassicGroupTest.testCannotRebalanceWhenPreparingRebalance",
    "ClassicGroupTest.testCannotRebalanceWhenDead",
)
def test_can_rebalance_in_each_state() -> None:
    group = stable(member("m"))
    assert group.can_rebalance
    group.begin_rebalance(NOW_MS)
    assert not group.can_rebalance
    group.init_next_generation(NOW_MS)
    assert group.can_rebalance
    group.die(NOW_MS)
    assert not group.can_rebalance


@pytest.mark.clause("ClassicGroupTest.testInitNextGeneration", "ClassicGroupTest.testInitNextGenerationEmptyGroup")
def test_generation_starts_with_protocol_or_without_members() -> None:
    group = group_of(member("m", "roundrobin"))
    group.begin_rebalance(NOW_MS + 5)
    assert (group.protocol, group.generation, group.state_since_ms) == (None, 0, NOW_MS + 5)
    group.init_next_generation(NOW_MS + 6)
    assert (group.protocol, group.generation, group.state) == ("roundrobin", 1, GroupState.COMPLETING_REBALANCE)
    group.begin_rebalance(NOW_MS)
    group.remove("m")
    group.init_next_generation(NOW_MS + 7)
    assert (group.protocol, group.generation, group.state) == (None, 2, GroupState.EMPTY)
    assert group.state_since_ms == NOW_MS + 7


def test_generation_wraps_to_first() -> None:
    group = Group("g", NOW_MS, generation=2**31 - 1)
    group.begin_rebalance(NOW_MS)
    group.init_next_generation(NOW_MS)
    assert group.generation == 1


# --- protocols ------------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "ClassicGroupTest.testSelectProtocol", "ClassicGroupTest.testSelectProtocolChoosesCompatibleProtocol"
)
def test_protocol_with_most_votes_among_common_ones_is_selected() -> None:
    assert group_of(member("a", "range", "roundrobin"), member("b", "roundrobin", "range")).select_protocol() == "range"
    three = group_of(
        member("a", "range", "roundrobin"), member("b", "roundrobin", "range"), member("c", "roundrobin", "range")
    )
    assert three.select_protocol() == "roundrobin"
    assert group_of(member("a", "x", "y"), member("b", "z", "y")).select_protocol() == "y"


@pytest.mark.clause("ClassicGroupTest.testSelectProtocolRaisesIfNoMembers")
def test_select_protocol_without_members_raises() -> None:
    with pytest.raises(AssertionError):
        group_of().select_protocol()


@pytest.mark.clause("ClassicGroupTest.testSupportsProtocols")
def test_supports_protocols() -> None:
    def knows(group: Group, *names: str, protocol_type: str = "consumer") -> bool:
        return group.supports(protocol_type, tuple(MemberProtocol(each, b"") for each in names))

    group = Group("g", NOW_MS)
    assert knows(group, "anything")
    assert not knows(group)
    assert not knows(group, "range", protocol_type="")
    group = stable(member("a", "range", "roundrobin"))
    assert knows(group, "roundrobin", "x")
    assert not knows(group, "x")
    assert not knows(group, "range", protocol_type="connect")
    group.add(member("b", "roundrobin"))
    assert not knows(group, "range")
    group.remove("b")
    assert knows(group, "range")


# --- members --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("ClassicGroupTest.testUpdateMember")
def test_update_member() -> None:
    group = group_of(member("m", "range"))
    known = group.members["m"]
    group.update(known, (MemberProtocol("roundrobin", b"r"),), 40_000, 20_000)
    assert (known.rebalance_timeout_ms, known.session_timeout_ms) == (40_000, 20_000)
    assert group.select_protocol() == "roundrobin"
    assert known.metadata("roundrobin") == b"r"
    assert known.metadata("range") == known.metadata(None) == b""


@pytest.mark.clause("ClassicGroupTest.testReplaceGroupInstance")
def test_replace_static_member_keeps_its_position() -> None:
    group = group_of(member("a", instance="one"), member("b", instance="two"))
    group.members["a"].assignment = b"x"
    group.replace_static("one", "c")
    assert list(group.members) == ["c", "b"]
    assert group.leader == "c"
    assert group.static_members == {"one": "c", "two": "b"}
    assert group.members["c"].assignment == b"x"


@pytest.mark.clause("ClassicGroupTest.testCannotAddStaticMemberIfAlreadyPresent")
def test_add_duplicate_instance_raises() -> None:
    group = group_of(member("a", instance="one"))
    with pytest.raises(AssertionError):
        group.add(member("b", instance="one"))


@pytest.mark.clause(
    "ClassicGroupTest.testRemovalFromPendingAfterMemberIsStable",
    "ClassicGroupTest.testRemovalFromPendingWhenMemberIsRemoved",
    "ClassicGroupTest.testRemovalFromPendingSyncWhenMemberIsRemoved",
    "ClassicGroupTest.testNewGenerationClearsPendingSyncMembers",
)
def test_pending_joins_and_syncs_are_cleared() -> None:
    group = Group("g", NOW_MS)
    group.pending_joins.update(a=None, b=None)
    group.add(member("a"))
    group.park_join("a", ignore_response)
    assert not group.has_all_members_joined
    group.remove("b")
    assert group.has_all_members_joined
    group.pending_syncs["a"] = None
    group.respond_to_join("a", JoinResponse(ErrorCode.none))
    group.remove("a")
    assert not group.pending_syncs
    group.pending_syncs["x"] = None
    group.begin_rebalance(NOW_MS)
    assert not group.pending_syncs


@pytest.mark.clause(
    "ClassicGroupTest.testElectNewJoinedLeader", "ClassicGroupTest.testMaybeElectNewJoinedLeaderChooseExisting"
)
def test_elect_new_joined_leader_keeps_joined_leader_or_elects_first() -> None:
    group = group_of(member("a"), member("b"), member("c"))
    assert not group.maybe_elect_new_joined_leader()
    group.park_join("c", ignore_response)
    assert group.maybe_elect_new_joined_leader()
    assert group.leader == "c"
    group.park_join("a", ignore_response)
    assert group.maybe_elect_new_joined_leader()
    assert group.leader == "c"
    assert not Group("g", NOW_MS).maybe_elect_new_joined_leader()


# --- parked requests --------------------------------------------------------------------------------------------------


def test_second_request_of_a_member_fails_the_parked_one() -> None:
    group = group_of(member("a"))
    joins: list[JoinResponse] = []
    syncs: list[SyncResponse] = []
    group.park_join("a", joins.append)
    group.park_join("a", ignore_response)
    group.park_sync("a", syncs.append)
    group.park_sync("a", ignore_response)
    assert joins == [JoinResponse(ErrorCode.rebalance_in_progress, "a")]
    assert syncs == [SyncResponse(ErrorCode.rebalance_in_progress)]


def test_member_with_a_parked_request_is_excused_unless_it_is_new() -> None:
    group = group_of(member("a"))
    known = group.members["a"]
    assert not group.is_excused(known)
    group.park_sync("a", ignore_response)
    assert group.is_excused(known)
    known.is_new = True
    assert not group.is_excused(known)


def test_all_parked_requests_fail_with_the_error() -> None:
    group = group_of(member("a"), member("b"))
    joins: list[JoinResponse] = []
    syncs: list[SyncResponse] = []
    group.park_join("a", joins.append)
    group.park_sync("b", syncs.append)
    group.fail_parked(ErrorCode.not_coordinator)
    assert joins == [JoinResponse(ErrorCode.not_coordinator, "a")]
    assert syncs == [SyncResponse(ErrorCode.not_coordinator)]
    assert not group.parked_joins
    assert not group.parked_syncs


# --- which requests are valid -----------------------------------------------------------------------------------------


@pytest.mark.clause("ClassicGroupTest.testValidateOffsetCommit")
def test_validate_commit() -> None:
    group = Group("g", NOW_MS, protocol_type="consumer")
    assert group.check_commit("", None, -1) is ErrorCode.none
    assert group.check_commit("m", None, 0) is ErrorCode.unknown_member_id
    group.add(member("m", instance="i"))
    group.begin_rebalance(NOW_MS)
    assert group.check_commit("m", "i", 0) is ErrorCode.none
    group.init_next_generation(NOW_MS)
    assert group.check_commit("", None, -1) is ErrorCode.unknown_member_id
    assert group.check_commit("x", "x", -1) is ErrorCode.unknown_member_id
    assert group.check_commit("m", "x", -1) is ErrorCode.unknown_member_id
    assert group.check_commit("m", "i", 0) is ErrorCode.illegal_generation
    assert group.check_commit("m", "i", -1) is ErrorCode.illegal_generation
    assert group.check_commit("m", "i", 1) is ErrorCode.rebalance_in_progress
    group.become_stable(NOW_MS)
    assert group.check_commit("m", "i", 1) is ErrorCode.none
    group.replace_static("i", "n")
    assert group.check_commit("m", "i", 1) is ErrorCode.fenced_instance_id
    group.die(NOW_MS)
    assert group.check_commit("n", "i", 1) is ErrorCode.coordinator_not_available


@pytest.mark.clause("ClassicGroupTest.testValidateDeleteGroup", "ClassicGroupTest.testValidateOffsetDelete")
def test_only_empty_or_dead_group_may_be_deleted() -> None:
    for protocol_type, offsets in (("consumer", ErrorCode.none), ("connect", ErrorCode.non_empty_group)):
        group = group_of(protocol_type=protocol_type)
        assert (group.check_delete(), group.check_offset_delete()) == (ErrorCode.none, ErrorCode.none)
        group.add(member("m"))
        for step in (group.begin_rebalance, group.init_next_generation, group.become_stable):
            step(NOW_MS)
            assert (group.check_delete(), group.check_offset_delete()) == (ErrorCode.non_empty_group, offsets)
        group.die(NOW_MS)
        assert (group.check_delete(), group.check_offset_delete()) == (ErrorCode.group_id_not_found,) * 2


@pytest.mark.clause("ClassicGroupTest.testSubscribedTopics", "ClassicGroupTest.testIsSubscribedToTopic")
def test_subscribed_topics_of_consumer_group() -> None:
    assert not Group("g", NOW_MS).is_subscribed_to("t")
    assert tuple(group_of().subscribed_topics() or ()) == ()
    group = stable(member("a", metadata=subscription(["t", "u"])))
    assert tuple(group.subscribed_topics() or ()) == ("t", "u")
    group.add(member("b", metadata=subscription(["v"], version=3)))
    assert tuple(group.subscribed_topics() or ()) == ("t", "u", "v")
    group.remove("a")
    assert tuple(group.subscribed_topics() or ()) == ("v",)
    assert group.is_subscribed_to("v")
    assert not group.is_subscribed_to("t")
    group.add(member("c", metadata=b"\0"))
    assert group.subscribed_topics() is None
    assert group.is_subscribed_to("anything")


@pytest.mark.clause("ClassicGroupTest.testSubscribedTopicsNonConsumerGroup")
def test_subscribed_topics_of_other_protocol_type_are_unknown() -> None:
    group = stable(member("a", metadata=subscription(["t"])), protocol_type="connect")
    assert group.subscribed_topics() is None
    assert not group.is_subscribed_to("t")


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        bytes(5),
        b"\xff\xff" + bytes(4),
        bytes(2) + b"\xff\xff\xff\xff",
        bytes(2) + b"\x7f\xff\xff\xff",
        bytes(2) + b"\0\0\0\1",
        bytes(2) + b"\0\0\0\1\0\5abc",
        bytes(2) + b"\0\0\0\1\xff\xff",
        bytes(2) + b"\0\0\0\1\0\1\xff",
    ],
)
def test_unreadable_metadata_makes_subscription_unknown(metadata: bytes) -> None:
    assert subscribed_topics([subscription(["t"]), metadata]) is None


@pytest.mark.clause("ClassicGroupTest.testOffsetExpirationCondition")
def test_expiry_start_of_offsets() -> None:
    committed_ms = NOW_MS - 1000
    assert Group("g", NOW_MS).expires_from_ms(committed_ms) == committed_ms
    assert Group("g", NOW_MS, protocol_type="connect").expires_from_ms(committed_ms) == NOW_MS
    assert Group("g", -1, protocol_type="connect").expires_from_ms(committed_ms) == committed_ms
    assert stable(member("a"), protocol_type="connect").expires_from_ms(committed_ms) is None
    group = stable(member("a", metadata=subscription(["t"])))
    assert group.expires_from_ms(committed_ms) == committed_ms
    group.begin_rebalance(NOW_MS)
    assert group.expires_from_ms(committed_ms) is None
    assert stable(member("a", metadata=b"?")).expires_from_ms(committed_ms) is None


def test_loaded_group() -> None:
    group = Group.loaded("g", 5, "consumer", "range", "b", 7, (member("a", instance="i"), member("b")))
    assert (group.state, group.leader, group.generation) == (GroupState.STABLE, "b", 5)
    assert (group.static_members, group.state_since_ms, group.protocol) == ({"i": "a"}, 7, "range")
    empty = Group.loaded("g", 5, "", None, "gone", -1, ())
    assert (empty.state, empty.leader, empty.protocol_type) == (GroupState.EMPTY, None, None)
