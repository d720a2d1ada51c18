"""A node of the quorum whose quorum is a fake."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, PartitionData, TopicData

from reference_broker.apis.quorum import k55_describe_quorum as k55
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import BrokerImage
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.values import QuorumDescription, ReplicaDescription
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.messages import decode_response, encode_response

LEADER = ReplicaDescription(1, 50, 9_000, 9_000)


FOLLOWER = ReplicaDescription(2, 45, 8_000, 7_000)


SILENT = ReplicaDescription(3, -1, -1, -1)


OBSERVER = ReplicaDescription(7, 50, 8_500, 8_400)


DESCRIPTION = QuorumDescription(1, 6, 44, (LEADER, FOLLOWER, SILENT), (OBSERVER,))


@dataclass
class Sent:
    peer: int
    channel: Channel
    api_key: int
    api_version: int
    body: object
    timeout_ms: int
    replied: Callable[[object], None]
    failed: Callable[[], None]


@dataclass
class Quorum:
    is_leader: bool = False
    leader_id: int = -1

    def describe(self) -> QuorumDescription:
        assert self.is_leader, "only the leader knows"
        return DESCRIPTION


@dataclass
class Call:
    client_id: str = "admin"
    listener: str = ""
    api_version: int = 2
    responses: list[Any] = field(default_factory=list)

    def respond(self, body: object) -> None:
        self.responses.append(body)

    def run(self, work: Callable[[], object]) -> bool:
        work()
        return True


class QuorumApiWorld:
    def __init__(self, *, is_leader: bool = False, leader_id: int = -1) -> None:
        self.quorum = Quorum(is_leader, leader_id)
        self.sent: list[Sent] = []
        brokers = {each: BrokerImage(each, 1, bytes(16), f"h{each}", 9000 + each, fenced=False) for each in (1, 2, 7)}
        loader = SimpleNamespace(image=SimpleNamespace(brokers=brokers))
        self.broker: Any = SimpleNamespace(
            node_id=1,
            quorum=self.quorum,
            config=BrokerConfig.parse({}),
            loader=loader,
            ports=SimpleNamespace(send=lambda *words: self.sent.append(Sent(*words))),
        )
        self.call = Call()

    def describe(self, body: DescribeQuorumRequest | None = None, client_id: str = "admin") -> Any:
        """Return the immediate response, or None."""
        self.call = Call(client_id)
        response = k55.handle(self.broker, self.call, body or describe_request(("__cluster_metadata", [0])))  # type: ignore[arg-type]
        if response is not None:
            frame = b"".join(encode_response(ApiKey.DESCRIBE_QUORUM, 2, 1, response))
            assert decode_response(ApiKey.DESCRIBE_QUORUM, 2, frame[4:]) == (1, response)
        return response


def describe_request(*topics: tuple[str, list[int]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=tuple(
            TopicData(topic_name=name, partitions=tuple(PartitionData(partition_index=index) for index in indexes))  # type: ignore[arg-type]
            for name, indexes in topics
        )
    )
