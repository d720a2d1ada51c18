"""Groups of the classic protocol: coordinators, members that are refused, and commits whose outcome is unknown.

An application commits what it has read, so a member that joins again goes on at the last commit. What is read after
that may be read a second time; what is committed was read.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from crucible_kafka.clients.application import POLL_MS, Consumer, Exchange
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.play import Play, one_of
from crucible_kafka.library.requests import request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

GROUPS: Final = ("groups",)
STATIC: Final = ("groups", "static-membership")
COORDINATOR: Final = "AbstractCoordinator.java"
COMMIT: Final = "ConsumerCoordinator.java, OffsetCommitResponseHandler"
KIP_345: Final = "KIP-345"
GROUP: Final = "readers"
BATCH: Final = 5
"""Number of records that are written at once."""
REQUEST_LIMIT_S: Final = 10.0
OLD_MEMBER: Final[dict[str, int]] = {"session_timeout_ms": 3000}
"""Settings where a member may come back under another ID: its old one stays in the group for the session timeout."""
PATIENT: Final[dict[str, int]] = {"session_timeout_ms": 30_000}
"""Settings where the group must not lose a member that is slow, since nothing may happen to it."""


def _member(at: Play, topic: str, **settings: Any) -> Consumer:
    consumer = at.consumer(group=GROUP, **settings)
    consumer.subscribe(topic)
    return consumer


def _reading(at: Play, **settings: Any) -> tuple[Consumer, str]:
    """Return a member that has read and committed the first records of a topic, and the topic."""
    topic = at.topic()
    member = _member(at, topic, **settings)
    at.reads(member, at.write(topic, BATCH))
    at.data("the first commit succeeds", member.commit(), True)
    return member, topic


def _reads_on(at: Play, member: Consumer, topic: str, committed: int = 2 * BATCH, timeouts: float = 3) -> None:
    """Write more, and judge that the member reads it once and commits it."""
    before = len(member.records)
    at.reads(member, at.write(topic, BATCH), timeouts, before)
    _commits(at, member, topic, committed)


def _commits(at: Play, member: Consumer, topic: str, offset: int) -> None:
    """Judge that what was read is committed in the end, by an application that repeats a commit that fails, and that
    the group has what the client says. A client with nothing new to commit may say that it has not."""
    bound_s = member.bound_s(3)
    deadline = time.monotonic() + bound_s
    while not (ends := member.commit() or _committed(at, topic) == offset or member.fatal is not None):
        if time.monotonic() >= deadline:
            break
        member.poll()
    at.progress("a commit ends", ends, bound_s, "3 x request_timeout_ms")
    at.data("committed offset", _committed(at, topic), offset)
    at.error("fatal errors of the application", member.fatal, None)


def _committed(at: Play, topic: str) -> int | None:
    return at.kafka.committed(GROUP).get((topic, 0))


def _reads_again(
    at: Play, member: Consumer, topic: str, wanted: Sequence[str], from_record: int = 0, committed: int = 2 * BATCH
) -> None:
    """Judge that a member that joined again reads these values at least once, and then commits them."""
    bound_s = member.bound_s(3, also_ms=int(member.settings["session_timeout_ms"]))
    done = member.poll_until(lambda: set(wanted) <= set(member.values[from_record:]), bound_s)
    at.progress("the member reads on", done, bound_s, "3 x request_timeout_ms, session_timeout_ms")
    _commits(at, member, topic, committed)


def _poll_all(members: Sequence[Consumer], is_done: Callable[[], object], within_s: float) -> bool:
    """Poll the members in turn until a condition holds, and return whether it does."""
    deadline = time.monotonic() + within_s
    while not is_done() and time.monotonic() < deadline:
        for member in members:
            member.poll()
    return bool(is_done())


def _joins(member: Consumer, after: Any = 0.0) -> list[Exchange]:
    return member.exchanges("JoinGroup", after)


def _membership(member: Consumer) -> dict[str, Any]:
    """Return the body of the last JoinGroup response that let the client in: member ID, leader and generation."""
    accepted = [join.response.body for join in _joins(member) if join.response and join.response.error == "NONE"]
    return dict(accepted[-1])


def _remove(at: Play, member: Consumer) -> float:
    """Remove the client's member from the group as an administrator would, and return the Unix time."""
    from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity

    of_member, of_request = MemberIdentity, LeaveGroupRequest
    leaving: Any = of_member(member_id=_membership(member)["member_id"], group_instance_id=None, reason=None)
    body: Any = of_request(group_id=GROUP, members=(leaving,))  # type: ignore[arg-type]
    coordinator = at.kafka.node(at.kafka.coordinator(GROUP)).address
    response = request(coordinator, ApiKey.LEAVE_GROUP, body, REQUEST_LIMIT_S)
    assert response.members[0].error_code is ErrorCode.none, "the coordinator would not remove the member"
    at.note(f"({member.name} is removed from the group)")
    return time.time()


# Coordinators


@case("groups/coordinator/moves", MUST, f"{COORDINATOR}, NOT_COORDINATOR: find the coordinator again", needs=GROUPS)
def coordinator_moves(at: Play) -> None:
    """Another node becomes the coordinator: the member finds it, goes on, and commits there what it reads."""
    kafka = at.cluster(nodes=3)
    member, topic = _reading(at)
    kafka.move_coordinator(GROUP)
    written = at.write(topic, BATCH)
    _reads_again(at, member, topic, written, BATCH)


@case("groups/coordinator/not-available", MUST, f"{COORDINATOR}, FindCoordinatorResponseHandler", needs=GROUPS)
def coordinator_not_available(at: Play) -> None:
    """FindCoordinator responds several times with COORDINATOR_NOT_AVAILABLE: the client requests it again, joins and
    reads."""
    topic = at.topic()
    rule = at.kafka.on("FindCoordinator", client_id="consumer-*").respond_error("COORDINATOR_NOT_AVAILABLE", times=3)
    member = _member(at, topic)
    at.reads(member, at.write(topic, BATCH))
    _commits(at, member, topic, BATCH)
    at.require(rule.fired == 3, f"The client has met the error {rule.fired} times only")


@case("groups/coordinator/loads", MUST, f"{COORDINATOR}, JoinGroupResponseHandler", needs=GROUPS)
def coordinator_loads(at: Play) -> None:
    """JoinGroup responds several times with COORDINATOR_LOAD_IN_PROGRESS: the client joins again after its backoff, and
    reads."""
    topic = at.topic()
    rule = at.kafka.on("JoinGroup", client_id="consumer-*").respond_error("COORDINATOR_LOAD_IN_PROGRESS", times=3)
    member = _member(at, topic)
    at.reads(member, at.write(topic, BATCH))
    _commits(at, member, topic, BATCH)
    at.require(rule.fired == 3, f"The client has met the error {rule.fired} times only")


# Commits


def _commit_refused(at: Play, error: str, times: int = 1) -> tuple[Consumer, Any]:
    """Let commits be refused, and judge that the client says so or repeats them. Return the member and the rule."""
    member, topic = _reading(at)
    rule = at.kafka.on("OffsetCommit", client_id="consumer-*").respond_error(error, times=times)
    at.reads(member, at.write(topic, BATCH), from_record=BATCH)
    says_so = member.commit()
    at.data("committed offset after the commit", _committed(at, topic), 2 * BATCH if says_so else BATCH)
    _commits(at, member, topic, 2 * BATCH)
    return member, rule


@case("groups/commit/not-coordinator", MUST, f"{COMMIT}: markCoordinatorUnknown", needs=GROUPS)
def commit_not_coordinator(at: Play) -> None:
    """OffsetCommit is refused with NOT_COORDINATOR: the client finds the coordinator again, and the commit succeeds
    there."""
    member, rule = _commit_refused(at, "NOT_COORDINATOR")
    at.wire("the client finds the coordinator again", bool(member.exchanges("FindCoordinator", after=rule)), True)


@case("groups/commit/loads", MUST, f"{COMMIT}: COORDINATOR_LOAD_IN_PROGRESS is retriable", needs=GROUPS)
def commit_loads(at: Play) -> None:
    """OffsetCommit is refused twice with COORDINATOR_LOAD_IN_PROGRESS: the commit is repeated."""
    _commit_refused(at, "COORDINATOR_LOAD_IN_PROGRESS", times=2)


@case("groups/commit/rebalance", MUST, f"{COMMIT}, REBALANCE_IN_PROGRESS", needs=GROUPS)
def commit_rebalance(at: Play) -> None:
    """OffsetCommit is refused with REBALANCE_IN_PROGRESS: nothing is reported as committed that is not, and a later
    commit succeeds."""
    _commit_refused(at, "REBALANCE_IN_PROGRESS")


@case("groups/commit/unknown-member", MUST, f"{COMMIT}: rejoins with a new member ID; franz-go#1326", needs=GROUPS)
def commit_unknown_member(at: Play) -> None:
    """An administrator removes the member, and its next commit is refused with UNKNOWN_MEMBER_ID: the commit fails, the
    client joins again at once, and reads on. It may read again from the last commit, or go on behind what it has read,
    which it commits in the end."""
    member, topic = _reading(at, heartbeat_interval_ms=4000)
    written = at.write(topic, BATCH)
    at.reads(member, written, from_record=BATCH)
    since_s = _remove(at, member)
    says_so = member.commit()
    joined = member.poll_until(lambda: _joins(member, since_s), member.bound_s(1))
    at.require(
        any("UNKNOWN_MEMBER_ID" in str(exchange.response) for exchange in member.exchanges("OffsetCommit", since_s)),
        "No commit was refused: the member had joined again before",
    )
    at.progress("the client joins again", joined, member.bound_s(1), "request_timeout_ms")
    if says_so:  # A client may repeat the commit as the new member; then the group has it.
        at.data("committed offset after the commit", _committed(at, topic), 2 * BATCH)
        return
    _reads_again(at, member, topic, [*written, *at.write(topic, BATCH)], BATCH, committed=3 * BATCH)


@case("groups/commit/response-lost", MUST, f"{COMMIT}: DisconnectException is retriable", needs=GROUPS)
def commit_response_lost(at: Play) -> None:
    """The response to a commit is lost: the commit is repeated, by the client or after its error, and the group has
    what was read."""
    member, topic = _reading(at)
    at.kafka.on("OffsetCommit", client_id="consumer-*").drop_response(times=1)
    _reads_on(at, member, topic)


# Members


@case("groups/member/id-required", MUST, "KIP-394: MEMBER_ID_REQUIRED", needs=GROUPS)
def id_required(at: Play) -> None:
    """The first JoinGroup is refused with MEMBER_ID_REQUIRED and gets an ID: the next one has this ID."""
    member, _ = _reading(at, **PATIENT)
    first, *more = _joins(member)
    given = first.response.body["member_id"] if first.response else ""
    at.supported(first.response and first.response.error == "MEMBER_ID_REQUIRED", "The client joins in version 3")
    at.wire("member IDs of the next JoinGroup requests", {each.body["member_id"] for each in more}, {given})


@case("groups/member/removed", MUST, f"{COORDINATOR}, HeartbeatResponseHandler: UNKNOWN_MEMBER_ID", needs=GROUPS)
def removed(at: Play) -> None:
    """An administrator removes the member, and its next heartbeat is refused with UNKNOWN_MEMBER_ID: the client joins
    with a new ID, and reads on from the last commit."""
    member, topic = _reading(at)
    since_s = _remove(at, member)
    bound_s = member.bound_s(1, also_ms=500)
    joined = member.poll_until(lambda: _joins(member, since_s), bound_s)
    at.progress("the client joins again", joined, bound_s, "heartbeat_interval_ms, request_timeout_ms")
    _reads_again(at, member, topic, at.write(topic, BATCH), BATCH)
    at.wire("a JoinGroup has no member ID", "" in {join.body["member_id"] for join in _joins(member, since_s)}, True)


@case("groups/member/illegal-generation", MUST, f"{COORDINATOR}, HeartbeatResponseHandler", needs=GROUPS)
def illegal_generation(at: Play) -> None:
    """A heartbeat is refused with ILLEGAL_GENERATION: the client joins again, and reads on from the last commit."""
    member, topic = _reading(at, **OLD_MEMBER)
    rule = at.kafka.on("Heartbeat", client_id="consumer-*").respond_error("ILLEGAL_GENERATION", times=1)
    bound_s = member.bound_s(1, also_ms=500)
    joined = member.poll_until(lambda: rule.fired and _joins(member, rule), bound_s)
    at.require(rule.fired, "No heartbeat came")
    at.progress("the client joins again", joined, bound_s, "heartbeat_interval_ms, request_timeout_ms")
    _reads_again(at, member, topic, at.write(topic, BATCH), BATCH)


@case("groups/member/join-lost", MUST, f"{COORDINATOR}, sendJoinGroupRequest; KIP-394", needs=GROUPS)
def join_lost(at: Play) -> None:
    """The response to the JoinGroup that let the member in is lost: the client joins again, and reads."""
    topic = at.topic()
    at.kafka.on("JoinGroup", client_id="consumer-*").change_response(
        lambda body: None if body.error_code is ErrorCode.none else body, times=1
    )
    member = _member(at, topic, **OLD_MEMBER)
    _reads_again(at, member, topic, at.write(topic, BATCH), committed=BATCH)


@case("groups/member/sync-lost", MUST, f"{COORDINATOR}, SyncGroupResponseHandler", needs=GROUPS)
def sync_lost(at: Play) -> None:
    """The response to SyncGroup is lost after the coordinator has the assignment: the client sends it again or joins
    again, and reads."""
    topic = at.topic()
    at.kafka.on("SyncGroup", client_id="consumer-*").drop_response(times=1)
    member = _member(at, topic, **OLD_MEMBER)
    _reads_again(at, member, topic, at.write(topic, BATCH), committed=BATCH)


@case("groups/member/fenced-instance", MUST, f"{KIP_345}: FENCED_INSTANCE_ID is fatal", needs=STATIC)
def fenced_instance(at: Play) -> None:
    """A second client joins with the same instance ID: the first gets FENCED_INSTANCE_ID and does not join again by
    itself, and the second reads on from the last commit. With Kafka's Java client an application that catches the error
    and polls joins again (AbstractCoordinator.java, pollHeartbeat), so this one ends."""
    first, topic = _reading(at, instance="one", **PATIENT)
    second = _member(at, topic, instance="one", **PATIENT)
    at.reads(second, at.write(topic, BATCH))
    seen = first.poll_until(lambda: first.errors, first.bound_s(1, also_ms=500))
    at.progress("the application gets an error", seen, first.bound_s(1), "heartbeat_interval_ms, request_timeout_ms")
    at.error("name of the error", first.errors[-1].failure.name, one_of("FENCED_INSTANCE_ID", "_FENCED", "_FATAL"))
    since_s = time.time()
    at.reads(second, at.write(topic, BATCH), from_record=BATCH)
    _commits(at, second, topic, 3 * BATCH)
    at.wire("number of times that the first joins afterwards", len(_joins(first, since_s)), 0)


@case("groups/member/static-returns", MUST, f"{KIP_345}: static members never send LeaveGroup", needs=STATIC)
def static_returns(at: Play) -> None:
    """A static member is closed and comes back: it leaves nothing, and reads on in the same generation."""
    first, topic = _reading(at, instance="one", **PATIENT)
    generation = _membership(first)["generation_id"]
    first.close()
    at.wire("LeaveGroup requests", len(first.exchanges("LeaveGroup")), 0)
    second = _member(at, topic, instance="one", **PATIENT)
    at.reads(second, at.write(topic, BATCH))
    at.wire("generation of the member that is back", _membership(second)["generation_id"], generation)
    _commits(at, second, topic, 2 * BATCH)


@case("groups/member/close-leaves", SHOULD, f"{COORDINATOR}, maybeLeaveGroup; LeaveGroupRequest.json", needs=GROUPS)
def close_leaves(at: Play) -> None:
    """A member is closed: it leaves the group, so that others need not wait for the session timeout."""
    member, _ = _reading(at, **PATIENT)
    member_id = _membership(member)["member_id"]
    member.close()
    left = [str(exchange.body) for exchange in member.exchanges("LeaveGroup")]
    at.wire("LeaveGroup requests with the member's ID", sum(member_id in each for each in left), 1)


# Several members


def _pair(at: Play, **settings: Any) -> tuple[Consumer, Consumer, str]:
    """Return two members, each with one partition of a topic, and the topic."""
    topic = at.topic(2)
    members = [_member(at, topic, **settings) for _ in range(2)]
    bound_s = members[0].bound_s(3)
    is_shared = _poll_all(members, lambda: all(len(member.assigned) == 1 for member in members), bound_s)
    at.progress("each of two members has one of two partitions", is_shared, bound_s, "3 x request_timeout_ms")
    return members[0], members[1], topic


def _both_read(at: Play, members: Sequence[Consumer], topic: str, also_ms: int = 0) -> None:
    """Write to both partitions, and judge that the members read it all, and commit what was processed."""
    written = [*at.write(topic, BATCH), *at.write(topic, BATCH, 1)]
    bound_s = members[0].bound_s(3, also_ms)
    done = _poll_all(members, lambda: set(written) <= {value for member in members for value in member.values}, bound_s)
    at.progress("the members read both partitions", done, bound_s, f"3 x request_timeout_ms, {also_ms} ms")
    for member in members:
        member.commit()
    for place, offset in at.kafka.committed(GROUP).items():
        got = {(topic, record.partition, record.offset) for member in members for record in member.records}
        skipped = [number for number in range(offset) if (*place, number) not in got]
        at.data(f"offsets of {place} that are committed and were not processed", skipped, [])


@case("groups/several/comes-and-goes", MUST, f"{COORDINATOR}; KIP-429 for cooperative assignors", needs=GROUPS)
def comes_and_goes(at: Play) -> None:
    """A second member joins, takes one of two partitions, and leaves: all is read, what is committed was processed, and
    the first member has both partitions again."""
    first, second, topic = _pair(at)
    _both_read(at, [first, second], topic)
    second.close()
    bound_s = first.bound_s(3, also_ms=int(first.settings["session_timeout_ms"]))
    back = first.poll_until(lambda: len(first.assigned) == 2, bound_s)
    at.progress("the first member has both partitions", back, bound_s, "3 x request_timeout_ms, session_timeout_ms")
    before = len(first.records)
    written = [*at.write(topic, BATCH), *at.write(topic, BATCH, 1)]
    done = first.poll_until(lambda: set(written) <= set(first.values[before:]), first.bound_s(3))
    at.progress("the first member reads both partitions", done, first.bound_s(3), "3 x request_timeout_ms")
    at.error("fatal errors of the application", first.fatal, None)


@case("groups/several/leader-killed", MUST, f"{COORDINATOR}; GroupCoordinator: session.timeout.ms", needs=GROUPS)
def leader_killed(at: Play) -> None:
    """The member that leads the group is killed: after its session timeout the other one has both partitions, and reads
    them."""
    first, second, topic = _pair(at, session_timeout_ms=2000, heartbeat_interval_ms=300)
    leads = _membership(first)["leader"] == _membership(first)["member_id"]
    leader, other = (first, second) if leads else (second, first)
    leader.kill()
    _both_read(at, [other], topic, also_ms=2000)
    at.data("partitions of the member that is left", sorted(other.assigned), [(topic, 0), (topic, 1)])


@case("groups/several/max-poll-interval", MUST, "KIP-62: max.poll.interval.ms; librdkafka#5541", needs=GROUPS)
def max_poll_interval(at: Play) -> None:
    """A member does not poll for longer than its maximum, though its heartbeats go on: the other member gets its
    partition. When it polls again it joins again and gets one back."""
    settings = {"max_poll_interval_ms": 2000, "session_timeout_ms": 2000, "heartbeat_interval_ms": 300}
    first, second, topic = _pair(at, **settings)
    at.supported("max_poll_interval_ms" not in first.ignored, "The client has no such setting")
    bound_s = second.bound_s(3, also_ms=4000)
    has_both = second.poll_until(lambda: len(second.assigned) == 2, bound_s)
    at.progress("the other member has both partitions", has_both, bound_s, "max_poll_interval_ms, session_timeout_ms")
    back = _poll_all(
        [first, second], lambda: len(first.assigned) == 1 and len(second.assigned) == 1, first.bound_s(3, also_ms=2000)
    )
    at.progress("the member that polls again has a partition", back, first.bound_s(3, also_ms=2000), "as above")
    _both_read(at, [first, second], topic, also_ms=POLL_MS)
    at.error("fatal errors of the application", first.fatal, None)
