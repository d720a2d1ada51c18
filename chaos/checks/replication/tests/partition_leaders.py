"""Node 0 of a cluster in order as the leader of its partition."""

from dataclasses import replace
from typing import Any

from chaos.checks.replication.committed_records import HighWatermarkByRequests
from chaos.checks.replication.isr import ProposalsHonest
from chaos.checks.replication.tests.replicated import KEY, TOPIC_ID, Cluster
from chaos.checks.tests.kafka_messages import alter_partition_request, alter_partition_response
from chaos.checks.tests.stub_node import broker_image
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import PeerReply, Reply, Request, Send, TimerFired
from reference_broker.ports.node_ports import Channel
from reference_broker.replication.leader.replicas import Followers, Replica
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.tags import Tag


class Leader:
    """Node 0 of a cluster in order, with the requests of its followers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (self.check,) = (check for check in cluster.checks if isinstance(check, HighWatermarkByRequests))
        self.node = cluster.node(0)
        self.led = self.node.broker.partitions.by_id[KEY]
        self.states = {each: Replica(each, 0, log_end_offset=3) for each in (1, 2)}
        self.led.followers = Followers(0, 0, 0, 3, isr=(0, 1, 2), states=self.states)
        self.node.broker.config = replace(BrokerConfig(), replica_lag_time_max_ms=1000)
        self.check.acted(cluster.now_us, self.node, None, [])
        self.brokers = {each: broker_image(each, broker_epoch=7) for each in (1, 2)}
        self.node.broker.quorum_node.loader.image = replace(cluster.image(), brokers=self.brokers)
        self.fetch(1, 3)
        self.fetch(2, 3)

    def fetch(
        self, replica: int, offset: int, *, counted: bool = True, moves_to: int = -1, error: int = 0, **session: Any
    ) -> None:
        """Handle a request, after which the high watermark is at ``moves_to``, if it moves."""
        topics = session.pop("topics", [FetchTopic("t", TOPIC_ID, [FetchPartition(0, offset, 1)])])
        body = FetchRequest(replica, topics=topics, replica_epoch=7, **session)
        tag = Tag(1, 17, "f", role="peer")
        request = Request(replica, offset, 1, 17, "f", body, tag)
        data = PartitionData(0, error, self.led.log.high_watermark)
        reply = Reply(replica, offset, 1, 17, FetchResponse(0, 0, [FetchTopicResponse("t", TOPIC_ID, [data])]), tag)
        if counted:
            self.states[replica].log_end_offset = offset
        self.check.acted(self.cluster.now_us, self.node, request, [reply])
        self.moves(moves_to)

    def moves(self, high_watermark: int) -> None:
        self.led.log.high_watermark = max(self.led.log.high_watermark, high_watermark)
        self.cluster.now_us += 1
        self.cluster.view.observe(self.cluster.now_us, 0, self.node)

    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


class Proposer(Leader):
    """A leader whose metadata has replicas 0 and 1 in sync."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        (self.proposals,) = (check for check in cluster.checks if isinstance(check, ProposalsHonest))
        self.led.followers.isr = (0, 1)
        self.commits((0, 1))

    def commits(self, isr: tuple[int, ...]) -> None:
        self.cluster.change(isr=isr)
        self.node.broker.quorum_node.loader.image = replace(self.cluster.image(), brokers=self.brokers)

    def happens(self, event: Any, *effects: Any) -> None:
        for check in (self.check, self.proposals):
            check.acted(self.cluster.now_us, self.node, event, effects)

    def proposes(
        self,
        isr: tuple[int, ...],
        partition_epoch: int = 1,
        broker_epoch: int = 7,
        index: int = 0,
        leader_epoch: int = 0,
    ) -> None:
        body = alter_partition_request(
            TOPIC_ID,
            isr=isr,
            partition_epoch=partition_epoch,
            index=index,
            leader_epoch=leader_epoch,
            broker_epoch=broker_epoch,
        )
        if len(isr) > len(self.cluster.state.isr):
            self.led.followers.isr = isr
        send = Send(1, Channel.CONTROLLER, 5, 56, 3, body, Tag(56, 3, "f"), 1000, "f")
        self.happens(TimerFired(1), send)

    def gets_response(self, error: int, partition_epoch: int = 2) -> None:
        body = alter_partition_response(TOPIC_ID, error=error, partition_epoch=partition_epoch)
        self.happens(PeerReply(1, Channel.CONTROLLER, 5, body))

    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.proposals.violations]
