"""The operations of a script on consumer groups."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.search.differ_world import (
    GROUP,
    LONG_MS,
    TRIES,
    ClientRequests,
    ClientResult,
    Value,
    code_name,
    first_of,
    first_partition,
    own_error,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

BETWEEN_MEMBERS_US: Final = 20_000
"""time between the requests of two members"""


@dataclass
class GroupClient(ClientRequests):
    """Each public method is one operation, and returns its result."""

    members: dict[str, dict[str, str]] = field(default_factory=dict)
    """the member IDs of each group, by the script's names of its members"""
    generations: dict[str, int] = field(default_factory=dict)
    """by group"""
    leaders: dict[str, str] = field(default_factory=dict)
    """the leader of each group, by the script's name"""
    _members_named: dict[str, str] = field(default_factory=dict)
    """the script's name of each member ID"""

    def join(self, group: str, members: Sequence[str], static: bool) -> ClientResult:
        """Let all these members join, the present ones and new ones, and give each an assignment."""
        ids = self.members.setdefault(group, {})
        # A follower that joins a stable group again gets its generation at once, so newcomers and the leader are first.
        members = sorted(members, key=lambda name: (name in ids, name != self.leaders.get(group), name))
        for name in members:
            if not static and name not in ids:
                _, response = self.group_request(
                    group, ApiKey.JOIN_GROUP, self._join_request(group, name, static), own_error
                )
                if response is None or response.error_code != ErrorCode.member_id_required:
                    return (("error of the first join", "no ID"),)
                ids[name] = str(response.member_id)
        node = self._first_coordinator(group)
        calls = {}
        for name in members:
            calls[name] = self.send_request(node, ApiKey.JOIN_GROUP, self._join_request(group, name, static))
            self.pass_time(BETWEEN_MEMBERS_US)
        responses = {name: self.wait(call, f"JoinGroup of {name}") for name, call in calls.items()}
        for name, response in responses.items():
            if response is None:
                return (("error of a join", "no response"),)
            if not response.error_code:
                ids[name] = str(response.member_id)
                self._members_named[ids[name]] = name
        rows: list[tuple[str, Value]] = []
        self.leaders[group], self.generations[group] = "", -1
        for name, response in responses.items():
            joined = tuple(sorted(self._member(str(member.member_id)) for member in response.members))
            error, generation = code_name(response.error_code), int(response.generation_id)
            rows.append((name, (error, generation, response.protocol_name, joined)))
            if str(response.leader) == ids.get(name) and not response.error_code:
                self.leaders[group], self.generations[group] = name, generation
        return self._sync(node, group, members, static, rows)

    def _first_coordinator(self, group: str) -> int:
        """Return the group's coordinator. The first request creates the offsets topic, and is repeated until the topic
        has leaders."""
        for _ in range(TRIES):
            if self.coordinator_of(GROUP, group) >= 0:
                break
            self.pass_time()
        return self.coordinator_of(GROUP, group)

    def _sync(
        self, node: int, group: str, members: Sequence[str], static: bool, rows: list[tuple[str, Value]]
    ) -> ClientResult:
        """Let all these members sync, and return the rows with their assignments added."""
        leader, generation = self.leaders[group], self.generations[group]
        assignments = [
            {
                "member_id": self.members[group].get(name, ""),
                "assignment": f"{group} {generation} {name}".encode(),
            }
            for name in members
        ]
        calls = {}
        for name in members:
            values = {
                **self._membership(group, name, static),
                "protocol_type": "differ",
                "protocol_name": "range",
                "assignments": assignments if name == leader else [],
            }
            calls[name] = self.send_request(node, ApiKey.SYNC_GROUP, values)
            self.pass_time(BETWEEN_MEMBERS_US)
        for name, call in calls.items():
            response = self.wait(call, f"SyncGroup of {name}")
            if response is None:
                return (("error of a sync", "no response"),)
            rows.append((f"{name} syncs", (code_name(response.error_code), bytes(response.assignment))))
        return tuple(rows)

    def _join_request(self, group: str, name: str, static: bool) -> dict[str, object]:
        return {
            "group_id": group,
            "session_timeout": LONG_MS,
            "rebalance_timeout": 5_000,
            "member_id": self.members[group].get(name, ""),
            "group_instance_id": name if static else None,
            "protocol_type": "differ",
            "protocols": [{"name": "range", "metadata": name.encode()}],
        }

    def _membership(self, group: str, name: str, static: bool) -> dict[str, object]:
        return {
            "group_id": group,
            "generation_id": self.generations.get(group, -1),
            "member_id": self.members.get(group, {}).get(name, ""),
            "group_instance_id": name if static else None,
        }

    def _member(self, member_id: str) -> str:
        return self._members_named.get(member_id, "unknown" if member_id else "")

    def heartbeat(self, group: str, name: str, static: bool) -> ClientResult:
        code, _ = self.group_request(group, ApiKey.HEARTBEAT, self._membership(group, name, static), own_error)
        return (("error", code_name(code)),)

    def leave(self, group: str, name: str, static: bool) -> ClientResult:
        member_id = self.members.get(group, {}).pop(name, "")
        leaving = {"member_id": member_id, "group_instance_id": name if static else None}

        def error(response: Any) -> int:
            return int(response.error_code or next((member.error_code for member in response.members), 0))

        code, _ = self.group_request(group, ApiKey.LEAVE_GROUP, {"group_id": group, "members": [leaving]}, error)
        return (("error", code_name(code)),)

    def commit(self, group: str, name: str, static: bool, topic: str, partition: int, offset: int) -> ClientResult:
        """Commit as that member, or without a member if there is no name."""
        rows = [{"partition_index": partition, "committed_offset": offset, "committed_metadata": f"of {name}"}]
        membership = self._membership(group, name, static)
        generation = membership.pop("generation_id") if name else -1
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": membership["member_id"] if name else "",
            "group_instance_id": membership["group_instance_id"] if name else None,
            "topics": [{"name": topic, "partitions": rows}],
        }
        code, _ = self.until_settled(
            lambda: self.coordinator_of(GROUP, group),
            lambda node: self.call(node, ApiKey.OFFSET_COMMIT, values, 9),
            first_partition,
        )
        return (("error", code_name(code)),)

    def committed(self, group: str, stable: bool) -> ClientResult:
        """Fetch all offsets of the group."""
        values = {"groups": [{"group_id": group, "topics": None}], "require_stable": stable}

        def send(node: int) -> Any:
            return self.call(node, ApiKey.OFFSET_FETCH, values)

        def error(response: Any) -> int:
            return int(response.groups[0].error_code)

        code, response = self.until_settled(lambda: self.coordinator_of(GROUP, group), send, error)
        if response is None:
            return (("error", "no response"),)
        rows = sorted(
            (
                f"{topic.name}-{of_partition.partition_index}",
                (int(of_partition.committed_offset), of_partition.metadata, code_name(of_partition.error_code)),
            )
            for topic in response.groups[0].topics
            for of_partition in topic.partitions
        )
        return (("error", code_name(code)), *rows)

    def describe_group(self, group: str) -> ClientResult:
        def error(response: Any) -> int:
            return int(response.groups[0].error_code)

        code, response = self.group_request(group, ApiKey.DESCRIBE_GROUPS, {"groups": [group]}, error)
        if response is None:
            return (("error", "no response"),)
        described = response.groups[0]
        members = sorted(
            (
                self._member(str(member.member_id)),
                member.group_instance_id,
                bytes(member.member_metadata),
                bytes(member.member_assignment),
            )
            for member in described.members
        )
        return (
            ("error", code_name(code)),
            ("state", str(described.group_state)),
            ("protocol", f"{described.protocol_type} {described.protocol_data}"),
            ("members", tuple(members)),
        )

    def list_groups(self) -> ClientResult:
        rows = []
        for node in range(len(self.world.machines)):
            response = self.call(node, ApiKey.LIST_GROUPS, {})
            rows += [
                (str(group.group_id), str(group.protocol_type), str(group.group_state)) for group in response.groups
            ]
        return (("groups", tuple(sorted(rows))),)

    def delete_group(self, group: str) -> ClientResult:
        code, _ = self.group_request(group, ApiKey.DELETE_GROUPS, {"groups_names": [group]}, first_of("results"))
        return (("error", code_name(code)),)

    def delete_offset(self, group: str, topic: str, partition: int) -> ClientResult:
        values = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}
        code, response = self.group_request(group, ApiKey.OFFSET_DELETE, values, own_error)
        own = first_partition(response) if response is not None and not code and response.topics else -1
        return (("error", code_name(code)), ("error of the partition", code_name(own) if own >= 0 else ""))
