"""Clients of groups: raw members, one or many whose responses are read in turn, and a client that retries commits."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.clients import RetryingClient
from bench.peers.node import PeerError
from reference_broker.blocking.transport import Connection, EncodedRequest
from reference_broker.client import group_requests as requests
from reference_broker.client.consumer_protocol import Subscription, encode_subscription
from reference_broker.client.group_requests import Joined, MemberIdentity
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit, commit_errors, commit_request
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, error_name

VERSIONS = requests.GroupVersions()
PROTOCOL = "bench"
SESSION_TIMEOUT_US = 45_000_000
REBALANCE_TIMEOUT_US = 60_000_000
NOT_YET = (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)


def await_coordinator(connection: Connection, group: str, limit_s: float) -> None:
    """Wait until the single node coordinates the group and has loaded it. It sends a leave of an unknown member,
    because Kafka responds to heartbeats without an error while it loads. Raise PeerError."""
    deadline = time.perf_counter() + limit_s
    body = requests.find_coordinator(group)
    probe = requests.leave(MemberIdentity(group, 0, "nobody"))
    error: Error | int = ErrorCode.coordinator_not_available
    while error in NOT_YET:
        if time.perf_counter() > deadline:
            raise PeerError(f"no coordinator for {group} within {limit_s:g} s: {error_name(int(error))}")
        response = connection.call(ApiKey.FIND_COORDINATOR, VERSIONS.find_coordinator, body)
        found = requests.coordinator_of(response, group)
        error = found if isinstance(found, int) else ErrorCode.none
        if error == ErrorCode.none:
            error = requests.leave_error(connection.call(ApiKey.LEAVE_GROUP, VERSIONS.leave_group, probe))
        if error in NOT_YET:
            time.sleep(0.005)


@dataclass(slots=True)
class RawMember:
    """One member on a connection of its own. The methods ``begin_`` send and the methods ``end_`` read the response, so
    that many members can wait at once. They raise PeerError for an unexpected response."""

    connection: Connection
    group: str
    member_id: str = ""
    joined: Joined | None = None
    _sent: EncodedRequest | None = None

    def begin_join(self, subscription: bytes) -> None:
        body = requests.join(
            MemberIdentity(self.group, member_id=self.member_id),
            {PROTOCOL: subscription},
            SESSION_TIMEOUT_US,
            REBALANCE_TIMEOUT_US,
        )
        self._sent = self.connection.send(ApiKey.JOIN_GROUP, VERSIONS.join_group, body)

    def end_join(self) -> Error | int:
        """Read the response. After MEMBER_ID_REQUIRED the member has its ID and must join once more."""
        response = requests.joined(self._received())
        self.member_id = response.member_id or self.member_id
        self.joined = response
        if response.error not in (ErrorCode.none, ErrorCode.member_id_required):
            raise PeerError(f"a member could not join {self.group}: {error_name(int(response.error))}")
        return response.error

    def begin_sync(self, assignments: Mapping[str, bytes]) -> None:
        """The leader gives ``assignments`` by member ID."""
        assert self.joined is not None, "a member that has not joined"
        identity = MemberIdentity(self.group, self.joined.generation_id, self.member_id)
        body = requests.sync(identity, PROTOCOL, assignments)
        self._sent = self.connection.send(ApiKey.SYNC_GROUP, VERSIONS.sync_group, body)

    def end_sync(self) -> bytes:
        """Return the assignment."""
        response = self._received()
        error = requests.error_of(response.error_code)
        if error:
            raise PeerError(f"a member could not sync in {self.group}: {error_name(int(error))}")
        return bytes(response.assignment)

    def _received(self) -> Any:
        assert self._sent is not None, "a response to no request"
        return self.connection.receive(self._sent).body


def subscription_of(topic: str, mark: bytes = b"") -> bytes:
    """Encode a subscription as consumers do, since Kafka's coordinator reads it. ``mark`` distinguishes two of them."""
    return encode_subscription(Subscription((topic,), user_data=mark))


def learn_ids(members: Sequence[RawMember], subscription: bytes) -> None:
    """Send each member's first JoinGroup, which only gives it an ID."""
    for member in members:
        member.begin_join(subscription)
        if member.end_join() != ErrorCode.member_id_required:
            raise PeerError("a member without an ID was let in")


def rebalance(members: Sequence[RawMember], subscription: bytes) -> None:
    """All members join at once and sync at once. ``subscription`` must differ from the last one, so that the
    coordinator begins a rebalance. Raise PeerError unless all are in one generation and get their own assignment."""
    for member in members:
        member.begin_join(subscription)
    for member in members:
        member.end_join()
    leader = next((member for member in members if member.joined is not None and member.joined.is_leader), None)
    generations = {member.joined.generation_id for member in members if member.joined is not None}
    if leader is None or len(generations) != 1:
        raise PeerError(f"{len(members)} members joined generations {sorted(generations)}, led by {leader}")
    for member in members:
        member.begin_sync(
            {raw_member.member_id: raw_member.member_id.encode() for raw_member in members} if member is leader else {}
        )
    for member in members:
        if member.end_sync() != member.member_id.encode():
            raise PeerError("a member got another one's assignment")


def encoded_commit(connection: Connection, group: str, topic: str, offset: int) -> EncodedRequest:
    """Encode a commit for partition 0, as a consumer without membership sends it."""
    body = commit_request(
        {TopicPartition(topic, 0): OffsetToCommit(offset)}, MemberIdentity(group), VERSIONS.offset_commit
    )
    return connection.encode(ApiKey.OFFSET_COMMIT, VERSIONS.offset_commit, body)


def check_committed(response: object) -> None:
    """Raise PeerError if the response to a commit has an error."""
    for error in commit_errors(response).values():
        if error:
            raise PeerError(f"a commit was refused: {error_name(int(error))}")


class RetryingCoordinator(RetryingClient):
    """``key_type`` says what has a coordinator (FindCoordinator): groups, or transactional IDs."""

    key_type = requests.GROUP_KEY_TYPE

    def coordinator(self, key: str, limit_s: float) -> int:
        """Wait until the key has a coordinator, and return its node ID. Raise PeerError."""
        return self._until(lambda: self._find(key), limit_s, f"a coordinator of {key}").node_id

    def _find(self, key: str) -> NodeAddress | None:
        body = requests.find_coordinator(key, self.key_type)
        response = self._call(self._turn(), ApiKey.FIND_COORDINATOR, VERSIONS.find_coordinator, body)
        if response is None:
            return None
        found = requests.coordinator_of(response, key)
        if isinstance(found, NodeAddress):
            return found
        self._is_fine(int(found), (ErrorCode.none,))
        return None


class RetryingGroups(RetryingCoordinator):
    """Looks up the coordinator at any node before each attempt, so that it follows it at once."""

    def committed(self, group: str, topic: str, offset: int, limit_s: float) -> None:
        """Commit an offset of partition 0 until that is accepted, as a consumer that assigns its partitions itself.

        Raise PeerError.
        """
        offsets = {TopicPartition(topic, 0): OffsetToCommit(offset)}
        body = commit_request(offsets, MemberIdentity(group), VERSIONS.offset_commit)

        def attempt() -> bool | None:
            found = self._find(group)
            if found is None:
                return None
            response = self._call(found.port, ApiKey.OFFSET_COMMIT, VERSIONS.offset_commit, body)
            if response is None:
                return None
            errors = list(commit_errors(response).values())
            return True if all(self._is_fine(int(error), (ErrorCode.none,)) for error in errors) else None

        self._until(attempt, limit_s, f"a commit of {group}")
