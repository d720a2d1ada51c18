"""Live brokers, and topics with several replicas, on an active controller with its log in memory."""

from reference_broker.controller.broker_heartbeats import Heartbeat, HeartbeatResult
from reference_broker.controller.planning.brokers import Registration
from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from reference_broker.metadata.tests.metadata_world import MetadataWorld, started, topic_id


class Brokers:
    """``epochs``: of each broker's registration."""

    def __init__(self, *broker_ids: int, **config: str) -> None:
        self.world: MetadataWorld = started(**config)
        self.epochs: dict[int, int] = {}
        self.incarnations = 0
        for broker_id in broker_ids:
            self.restart(broker_id)
            self.beat(broker_id)

    @property
    def image(self) -> MetadataImage:
        return self.world.controller.image

    def restart(self, broker_id: int, rack: str | None = None) -> None:
        """Register a new incarnation, fenced, after the session of the previous one has expired."""
        self.world.controller.heartbeats.forget(broker_id)
        self.request_registration(broker_id, rack)
        self.world.settle()

    def request_registration(self, broker_id: int, rack: str | None = None, incarnation: bytes = b"") -> None:
        """Register as a new incarnation, or as the given one."""
        self.incarnations += 1
        wanted = Registration(
            broker_id,
            "cluster",
            incarnation or self.incarnations.to_bytes(16, "big"),
            (("PLAINTEXT", "h", 9092, 0),),
            (("metadata.version", 7, 27), ("eligible.leader.replicas.version", 0, 1), ("transaction.version", 0, 2)),
            rack,
            (),
        )

        def registered(outcome: int | ApiError) -> None:
            assert isinstance(outcome, int), outcome
            self.epochs[broker_id] = outcome

        self.world.controller.register_broker(wanted, registered)

    def beat(
        self, broker_id: int, *, offset: int | None = None, fence: bool = False, shut_down: bool = False
    ) -> HeartbeatResult:
        offset = self.image.provenance.offset if offset is None else offset
        result = self.world.controller.heartbeats.heartbeat(
            Heartbeat(broker_id, self.epochs[broker_id], offset, fence, shut_down)
        )
        assert isinstance(result, HeartbeatResult)
        self.world.settle()
        return result

    def create(self, name: str, *assignments: tuple[int, ...], number: int = 1, **configs: str) -> None:
        records: list[MetadataRecord] = [TopicRecord(name=name, topic_id=topic_id(number))]
        records += (
            ConfigRecord(resource_type=2, resource_name=name, name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        )
        records += (
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id(number),
                replicas=replicas,
                isr=replicas,
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=(bytes(16),) * len(replicas),
            )
            for index, replicas in enumerate(assignments)
        )
        self.world.submit(lambda: records, lambda _: None)
        self.world.settle()

    def states(self, name: str = "t") -> list[tuple[int, tuple[int, ...], int, int]]:
        """Return (leader, ISR, leader epoch, partition epoch) of each partition."""
        return [
            (partition.leader, partition.isr, partition.leader_epoch, partition.partition_epoch)
            for partition in self.image.topics[name].partitions
        ]

    def pass_time(self, milliseconds: int, *beating: int) -> None:
        """Pass time in steps of two seconds, with a heartbeat of each of ``beating`` before each."""
        for _ in range(milliseconds // 2000):
            for broker_id in beating:
                self.beat(broker_id)
            self.world.ports.advance(2000)
            self.world.settle()
