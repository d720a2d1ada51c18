"""Tells the controller which of this node's replicas are in no directory, because their logs are damaged (KIP-858).

The node tells it after it has opened its logs, and before it is unfenced. So a damaged replica that is still an
eligible leader is not elected with what is left of its log. The node's other replicas are not touched by this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from kio.schema.assign_replicas_to_dirs.v0.request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from kio.schema.assign_replicas_to_dirs.v0.response import AssignReplicasToDirsResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64

from reference_broker.controller.broker_lifecycle import BrokerLifecycle
from reference_broker.metadata.uuids import LOST_DIRECTORY
from reference_broker.ports.node_ports import Surroundings
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.api_versions.v4 import request as versions_request
    from kio.schema.api_versions.v4 import response as versions_response
else:
    versions_request = LazySchema("api_versions.v4.request")
    versions_response = LazySchema("api_versions.v4.response")

RETRY_MS = 200
MOST_REPLICAS: Final = 500
"""One request tells of so many replicas at most. A controller refuses a request that holds too many items. Kafka's
limit is 2,250 (AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST)."""

ReplicaKey: TypeAlias = tuple[bytes, int]
"""Topic ID and partition index."""


@dataclass(slots=True, eq=False)
class DirectoryAssignment:
    """``directory`` is the ID of this node's only directory."""

    _surroundings: Surroundings
    _lifecycle: BrokerLifecycle
    directory: bytes

    def tell(self, replicas: Mapping[ReplicaKey, bool], done: Callable[[], None]) -> None:
        """Tells of each replica whether it is lost, in requests of MOST_REPLICAS, one after the other. Asks until an
        active controller has made all changes, and then calls ``done``. A cluster whose metadata.version is too low for
        directories refuses, and that ends it, too. So does a controller whose ApiVersions does not name this API: it
        closes the connection of whoever asks."""
        if not replicas:
            done()
            return
        told = dict(islice(replicas.items(), MOST_REPLICAS))

        def again() -> None:
            self._surroundings.after(RETRY_MS * 1000, lambda: self.tell(replicas, done))

        def replied(answer: object) -> None:
            assert isinstance(answer, AssignReplicasToDirsResponse), f"directories were answered by {answer!r}"
            if answer.error_code == ErrorCode.none:
                self.tell({key: is_lost for key, is_lost in replicas.items() if key not in told}, done)
            elif answer.error_code == ErrorCode.unsupported_version:
                done()
            else:
                again()

        def failed() -> None:
            channel.ask(ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS][1], _versions_request(), announced, again)

        def announced(answer: object) -> None:
            assert isinstance(answer, versions_response.ApiVersionsResponse), f"versions were answered by {answer!r}"
            if any(int(each.api_key) == ApiKey.ASSIGN_REPLICAS_TO_DIRS for each in answer.api_keys):
                again()
                return
            self._surroundings.ports.note("lost_replicas_not_told", ("replicas", len(replicas)))
            done()

        channel = self._lifecycle.channel
        channel.ask(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, self._request(told), replied, failed)

    def _request(self, replicas: Mapping[ReplicaKey, bool]) -> AssignReplicasToDirsRequest:
        return AssignReplicasToDirsRequest(
            broker_id=BrokerId(self._surroundings.node_id),
            broker_epoch=i64(self._lifecycle.registered_epoch),
            directories=tuple(
                DirectoryData(id_=UUID(bytes=directory), topics=_topics(keys))
                for directory, keys in (
                    (LOST_DIRECTORY, [key for key, is_lost in replicas.items() if is_lost]),
                    (self.directory, [key for key, is_lost in replicas.items() if not is_lost]),
                )
                if keys
            ),
        )


def _versions_request() -> "versions_request.ApiVersionsRequest":
    return versions_request.ApiVersionsRequest(client_software_name="crucible", client_software_version="1")


def _topics(keys: Sequence[ReplicaKey]) -> tuple[TopicData, ...]:
    indexes: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        indexes.setdefault(topic_id, []).append(index)
    return tuple(
        TopicData(
            topic_id=UUID(bytes=topic_id), partitions=tuple(PartitionData(partition_index=i32(one)) for one in found)
        )
        for topic_id, found in indexes.items()
    )
