"""A member of a consumer group in few words: it joins, syncs and sends heartbeats, on a connection of its own."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.probe.context import ProbeContext, single
from bench.probe.conversation import Conversation
from reference_broker.blocking.transport import EncodedRequest
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

JOIN, SYNC, HEARTBEAT = int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP), int(ApiKey.HEARTBEAT)
LEAVE, DESCRIBE = int(ApiKey.LEAVE_GROUP), int(ApiKey.DESCRIBE_GROUPS)
CONSUMER = "consumer"
PROBE = "probe"
"""A protocol type of which no broker knows how its metadata looks."""
SESSION_MS = 30_000
REBALANCE_MS = 30_000
IDS_SINCE = 4
"""From this version of JoinGroup on, a member gets its ID before it joins (KIP-394)."""
AGAIN_AFTER_S = 0.05
REBALANCE_WITHIN_S = 10.0


@dataclass(slots=True)
class ProbeMember:
    """A member, on a connection of its own to the group's coordinator."""

    at: ProbeContext
    group_id: str
    protocols: Mapping[str, bytes] = field(default_factory=lambda: {"range": b"metadata"})  # metadata by name
    instance: str | None = None  # the instance ID of a static member
    protocol_type: str = PROBE
    session_ms: int = SESSION_MS
    member_id: str = ""  # this and the next three are from the response to the last join
    generation: int = -1
    leader: str = ""
    protocol: str | None = None
    on: Conversation = field(init=False)

    def __post_init__(self) -> None:
        self.on = self.at.coordinator(self.group_id)

    @property
    def leads(self) -> bool:
        return self.leader == self.member_id

    @property
    def identity(self) -> dict[str, object]:
        """The fields that identify the member in a request."""
        named = {} if self.instance is None else {"group_instance_id": self.instance}
        return {"group_id": self.group_id, "member_id": self.member_id, "generation_id": self.generation, **named}

    # Joining

    def send_join(self, version: int | None = None, **other: object) -> EncodedRequest:
        """Send a JoinGroup as the member is. ``other``: fields with other values."""
        identity = {name: value for name, value in self.identity.items() if name != "generation_id"}
        request = {
            "session_timeout": self.session_ms,
            "rebalance_timeout": REBALANCE_MS,
            "protocol_type": self.protocol_type,
            "protocols": [{"name": name, "metadata": data} for name, data in self.protocols.items()],
        }
        return self.at.send(JOIN, {**identity, **request, **other}, version, self.on)

    def join(self, version: int | None = None, **other: object) -> Any:
        """Send a JoinGroup and return the response, with or without an error."""
        return self.on.receive(self.send_join(version, **other))

    def knock(self, **other: Any) -> Any:
        """Join with what must be refused, and return the response. A broker may give out an ID before it checks the
        request (KIP-394), which is then sent again."""
        response = self.join(**other)
        if response.error_code == ErrorCode.member_id_required:
            self.member_id = str(response.member_id)
            response = self.join(**other)
        return response

    def send_entry(self) -> EncodedRequest:
        """Send the JoinGroup that makes it a member. If it needs an ID it requests one before."""
        if not self.member_id and self.instance is None and self.at.version(JOIN) >= IDS_SINCE:
            response = self.join()
            self.at.expect("error code of the first join", response.error_code, ErrorCode.member_id_required)
            self.member_id = str(response.member_id)
        return self.send_join()

    def joined(self, request: EncodedRequest, limit_s: float | None = None) -> Any:
        """Read the response to a JoinGroup, which must succeed and come in that time."""
        response = self.on.receive(request, limit_s)
        self.at.expect("error code of a join", response.error_code, ErrorCode.none)
        self.member_id, self.generation = str(response.member_id), int(response.generation_id)
        self.leader, self.protocol = str(response.leader), response.protocol_name
        return response

    def enter(self) -> Any:
        """Join and return the response, which must be without error."""
        return self.joined(self.send_entry())

    # Being a member

    def send_sync(self, assignments: Mapping[str, bytes] | None = None, **other: object) -> EncodedRequest:
        """``assignments``: by member ID."""
        given = [{"member_id": name, "assignment": data} for name, data in (assignments or {}).items()]
        request = {"protocol_type": self.protocol_type, "protocol_name": self.protocol, "assignments": given}
        if self.at.version(SYNC) < 5:
            request = {"assignments": given}
        return self.at.send(SYNC, {**self.identity, **request, **other}, on=self.on)

    def sync(self, assignments: Mapping[str, bytes] | None = None, **other: object) -> Any:
        return self.on.receive(self.send_sync(assignments, **other))

    def heartbeat(self, **other: object) -> int:
        """Return the error code."""
        return int(self.at.call(HEARTBEAT, {**self.identity, **other}, on=self.on).error_code)

    def leave(self) -> None:
        leaving = {"member_id": self.member_id, "group_instance_id": self.instance}
        response = self.at.call(LEAVE, {"group_id": self.group_id, "members": [leaving]}, on=self.on)
        self.at.expect("error code of the group", response.error_code, ErrorCode.none)

    def described(self, unseen: bool = False) -> Any:
        """Return the group from the response of DescribeGroups."""
        call = self.at.call_unseen if unseen else self.at.call
        return single(call(DESCRIBE, {"groups": [self.group_id]}, on=self.on), "groups")

    def until_rebalance(self, within_s: float = REBALANCE_WITHIN_S) -> None:
        """Send heartbeats until one gets REBALANCE_IN_PROGRESS."""

        def is_quiet() -> bool:
            return int(self.at.call_unseen(HEARTBEAT, self.identity, on=self.on).error_code) == ErrorCode.none

        _while(is_quiet, within_s)
        self.at.expect("error code of a heartbeat", self.heartbeat(), ErrorCode.rebalance_in_progress)

    def until_state(self, state: str) -> None:
        """Describe the group until it is in this state. Apache Kafka returns what is committed, which is a moment
        older."""
        _while(lambda: self.described(unseen=True).group_state != state, REBALANCE_WITHIN_S)
        self.at.expect("state", self.described().group_state, state)


def _while(holds: Callable[[], bool], within_s: float) -> None:
    until = time.monotonic() + within_s
    while holds() and time.monotonic() < until:
        time.sleep(AGAIN_AFTER_S)


def settled(at: ProbeContext, **options: Any) -> ProbeMember:
    """The one member of a stable group, with the assignment ``b"mine"``. ``options``: of ProbeMember."""
    member = ProbeMember(at, at.group(), **options)
    member.enter()
    response = member.sync({member.member_id: b"mine"})
    at.expect("error code of a sync", response.error_code, ErrorCode.none)
    return member


def beside(first: ProbeMember, **options: Any) -> tuple[ProbeMember, Any, Any]:
    """A second member joins a stable group, and the first one joins again. Returns the second member, and both
    responses of the generation that they share, the first one's before. Neither has synced."""
    second = ProbeMember(first.at, first.group_id, **options)
    request = second.send_entry()
    first.until_rebalance()
    again = first.joined(first.send_join())
    return second, again, second.joined(request)


def pair(at: ProbeContext, first: Mapping[str, Any] | None = None, **second: Any) -> tuple[ProbeMember, ProbeMember]:
    """Two members of one generation, the leader before. Neither has synced. The options are those of ProbeMember."""
    one = settled(at, **(first or {}))
    other, _, _ = beside(one, **second)
    return (one, other) if one.leads else (other, one)
