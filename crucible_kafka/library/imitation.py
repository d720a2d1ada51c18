"""Imitation of an older or proxied broker: limited versions, and other addresses in responses.

Clients negotiate by ApiVersions, so they believe what it announces. A request beyond that closes its connection, as in
Kafka. Requests between nodes are not limited.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, Final

from reference_broker.core.events import Reply, Request
from reference_broker.wire.apis import VERSIONS, ApiKey

NOT_OFFERED: Final = -1

_HIGHEST: Final[Mapping[int, str]] = {
    ApiKey.PRODUCE: "1.0:5 2.0:6 2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
    ApiKey.FETCH: "1.0:6 1.1:7 2.0:8 2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",
    ApiKey.LIST_OFFSETS: "1.0:2 2.0:3 2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10",
    ApiKey.METADATA: "1.0:5 2.0:6 2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13",
    ApiKey.OFFSET_COMMIT: "1.0:3 2.0:4 2.1:6 2.3:7 2.4:8 3.7:9",
    ApiKey.OFFSET_FETCH: "1.0:3 2.0:4 2.1:5 2.4:6 2.5:7 3.0:8 3.7:9",
    ApiKey.FIND_COORDINATOR: "1.0:1 2.0:2 2.4:3 3.0:4 3.8:5 3.9:6",
    ApiKey.JOIN_GROUP: "1.0:2 2.0:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9",
    ApiKey.HEARTBEAT: "1.0:1 2.0:2 2.3:3 2.4:4",
    ApiKey.LEAVE_GROUP: "1.0:1 2.0:2 2.4:4 3.2:5",
    ApiKey.SYNC_GROUP: "1.0:1 2.0:2 2.3:3 2.4:4 2.5:5",
    ApiKey.DESCRIBE_GROUPS: "1.0:1 2.0:2 2.3:3 2.4:5 4.0:6",
    ApiKey.LIST_GROUPS: "1.0:1 2.0:2 2.4:3 2.6:4 3.8:5",
    ApiKey.API_VERSIONS: "1.0:1 2.0:2 2.4:3 3.9:4",
    ApiKey.CREATE_TOPICS: "1.0:2 2.0:3 2.4:5 2.7:6 2.8:7",
    ApiKey.DELETE_TOPICS: "1.0:1 2.0:2 2.1:3 2.4:4 2.7:5 2.8:6",
    ApiKey.DELETE_RECORDS: "1.0:0 2.0:1 2.6:2",
    ApiKey.INIT_PRODUCER_ID: "1.0:0 2.0:1 2.4:2 2.5:3 2.7:4 3.8:5",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "1.0:0 2.0:1 2.1:2 2.3:3 2.8:4",
    ApiKey.ADD_PARTITIONS_TO_TXN: "1.0:0 2.0:1 2.7:2 2.8:3 3.6:4 3.8:5",
    ApiKey.ADD_OFFSETS_TO_TXN: "1.0:0 2.0:1 2.7:2 2.8:3 3.8:4",
    ApiKey.END_TXN: "1.0:0 2.0:1 2.7:2 2.8:3 3.8:4 4.0:5",
    ApiKey.WRITE_TXN_MARKERS: "1.0:0 2.8:1",
    ApiKey.TXN_OFFSET_COMMIT: "1.0:0 2.0:1 2.1:2 2.5:3 3.8:4 4.0:5",
    ApiKey.DESCRIBE_ACLS: "1.0:0 2.0:1 2.5:2 3.3:3",
    ApiKey.CREATE_ACLS: "1.0:0 2.0:1 2.5:2 3.3:3",
    ApiKey.DELETE_ACLS: "1.0:0 2.0:1 2.5:2 3.3:3",
    ApiKey.DESCRIBE_CONFIGS: "1.0:0 1.1:1 2.0:2 2.6:3 2.8:4",
    ApiKey.ALTER_CONFIGS: "1.0:0 2.0:1 2.8:2",
    ApiKey.CREATE_PARTITIONS: "1.0:0 2.0:1 2.5:2 2.7:3",
    ApiKey.DELETE_GROUPS: "1.1:0 2.0:1 2.4:2",
    ApiKey.ELECT_LEADERS: "2.2:0 2.4:2",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "2.3:0 2.4:1",
    ApiKey.OFFSET_DELETE: "2.4:0",
    ApiKey.DESCRIBE_QUORUM: "2.7:0 3.3:1 3.9:2",
    ApiKey.UPDATE_FEATURES: "2.7:0 3.3:1 4.0:2",
    ApiKey.DESCRIBE_CLUSTER: "2.8:0 3.7:1 4.0:2",
    ApiKey.DESCRIBE_PRODUCERS: "2.8:0",
    ApiKey.UNREGISTER_BROKER: "2.8:0",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0:0",
    ApiKey.LIST_TRANSACTIONS: "3.0:0 3.8:1 4.1:2",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "3.8:0",
}
"""The highest version of each API for clients, each with the release of Kafka that brought it. Source: the schemas in
Kafka's repository (``validVersions`` at each release, without unstable versions)."""

RELEASES: Final = (
    *(f"1.{minor}" for minor in range(2)),
    *(f"2.{minor}" for minor in range(9)),
    *(f"3.{minor}" for minor in range(10)),
    *(f"4.{minor}" for minor in range(2)),
)
"""The releases that can be imitated. Before 1.0, clients wrote records in an older format."""


def versions_of(release: str) -> dict[int, int]:
    """Return the highest version of each API that a release of Kafka has, and NOT_OFFERED for APIs that it lacks. Raise
    ValueError."""
    if release not in RELEASES:
        raise ValueError(
            f"max_versions is {release!r}: give a release from {RELEASES[0]} to {RELEASES[-1]}, such as 2.8."
        )
    at = RELEASES.index(release)
    found = {}
    for api_key, steps in _HIGHEST.items():
        since = [
            (RELEASES.index(first), int(highest)) for first, highest in (each.split(":") for each in steps.split())
        ]
        found[int(api_key)] = max((step for step in since if step[0] <= at), default=(0, NOT_OFFERED))[1]
    return found


class Imitation:
    """The versions and addresses that clients of one node see."""

    def __init__(self) -> None:
        self.highest: dict[int, int] = {}
        """The limit of each API's version; APIs that are not here are not limited."""
        self.addresses: dict[int, tuple[str, int]] = {}
        """Host and port of nodes, instead of their own."""

    def admitted(self, request: Request) -> Request | None:
        """Return the request as the node gets it, or None if its connection is to be closed."""
        highest = self.highest.get(request.api_key)
        if highest is None or request.tag.role != "client" or request.api_version <= highest:
            return request
        if request.api_key == ApiKey.API_VERSIONS:
            return request._replace(body=None)  # As of an unknown version: the response has version 0 (KIP-511).
        return None

    def changed(self, reply: Reply) -> Reply:
        """Return the response to a client as it goes out."""
        body: Any = reply.body
        if body is None or reply.tag.role != "client":
            return reply
        if self.highest and reply.api_key == ApiKey.API_VERSIONS:
            return reply._replace(body=replace(body, api_keys=tuple(self._limited(body.api_keys))))
        if self.addresses and reply.api_key in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER):
            return reply._replace(body=self._readdressed(body))
        return reply

    def _limited(self, ranges: Any) -> Any:
        for each in ranges:
            highest = min(each.max_version, self.highest.get(each.api_key, each.max_version))
            if highest >= max(each.min_version, VERSIONS[each.api_key][0]):
                yield replace(each, max_version=type(each.max_version)(highest))

    def _readdressed(self, value: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in value.__dataclass_fields__:
            items = getattr(value, name)
            if isinstance(items, tuple) and items and is_dataclass(items[0]):
                changes[name] = tuple(self._readdressed(item) for item in items)
        node = getattr(value, "node_id", getattr(value, "broker_id", None))
        if node in self.addresses and hasattr(value, "host"):
            host, port = self.addresses[node]
            changes |= {"host": host, "port": type(value.port)(port)}
        return replace(value, **changes) if changes else value
