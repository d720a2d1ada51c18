"""Applies metadata records to a delta, with one small function for each record type."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reference_broker.metadata.delta import MetadataDelta, MetadataFault
from reference_broker.metadata.image import BrokerImage, PartitionImage, named_listeners
from reference_broker.metadata.records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

NO_LEADER_CHANGE = -2


def replay(delta: MetadataDelta, record: MetadataRecord) -> None:
    """Applies one record. Raises MetadataFault if the record cannot follow what is there."""
    apply = _REPLAY.get(type(record))
    if apply is None:
        raise MetadataFault(f"{type(record).__name__} may not stand outside a metadata transaction")
    apply(delta, record)


def _register_broker(delta: MetadataDelta, record: RegisterBrokerRecord) -> None:
    if not record.end_points:
        raise MetadataFault(f"broker {record.broker_id} registers without an endpoint")
    delta.put_broker(
        BrokerImage(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            host=record.end_points[0].host,
            port=record.end_points[0].port,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            rack=record.rack,
            log_dirs=record.log_dirs,
            features=tuple((one.name, one.min_supported_version, one.max_supported_version) for one in record.features),
            listeners=named_listeners((one.name, one.host, one.port) for one in record.end_points),
        )
    )


def _unregister_broker(delta: MetadataDelta, record: UnregisterBrokerRecord) -> None:
    delta.broker(record.broker_id, record.broker_epoch)
    delta.brokers[record.broker_id] = None


def _change_registration(delta: MetadataDelta, record: BrokerRegistrationChangeRecord) -> None:
    broker = delta.broker(record.broker_id, record.broker_epoch)
    delta.put_broker(
        replace(
            broker,
            fenced=broker.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown > 0,
            log_dirs=record.log_dirs or broker.log_dirs,
        )
    )


def _create_topic(delta: MetadataDelta, record: TopicRecord) -> None:
    delta.put_topic(record.name, record.topic_id)


def _put_partition(delta: MetadataDelta, record: PartitionRecord) -> None:
    partition = PartitionImage(
        replicas=record.replicas,
        isr=record.isr,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        adding_replicas=record.adding_replicas,
        removing_replicas=record.removing_replicas,
        directories=record.directories,
        leader_recovery_state=record.leader_recovery_state,
        elr=record.eligible_leader_replicas or (),
        last_known_elr=record.last_known_elr or (),
    )
    delta.put_partition(record.topic_id, record.partition_id, partition)


def changed_partition(before: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """The partition after a change. A record that names a leader begins a new leader epoch, even if it names the same
    leader as before."""
    elected = record.leader != NO_LEADER_CHANGE
    return PartitionImage(
        replicas=_or(record.replicas, before.replicas),
        isr=_or(record.isr, before.isr),
        leader=record.leader if elected else before.leader,
        leader_epoch=before.leader_epoch + elected,
        partition_epoch=before.partition_epoch + 1,
        adding_replicas=_or(record.adding_replicas, before.adding_replicas),
        removing_replicas=_or(record.removing_replicas, before.removing_replicas),
        directories=_or(record.directories, before.directories),
        leader_recovery_state=(
            before.leader_recovery_state if record.leader_recovery_state < 0 else record.leader_recovery_state
        ),
        elr=_or(record.eligible_leader_replicas, before.elr),
        last_known_elr=_or(record.last_known_elr, before.last_known_elr),
    )


def _change_partition(delta: MetadataDelta, record: PartitionChangeRecord) -> None:
    before = delta.partition(record.topic_id, record.partition_id)
    delta.put_partition(record.topic_id, record.partition_id, changed_partition(before, record))


def _or(changed: Any, before: Any) -> Any:
    return before if changed is None else changed


def _set_config(delta: MetadataDelta, record: ConfigRecord) -> None:
    delta.set_config((record.resource_type, record.resource_name), record.name, record.value)


def _remove_topic(delta: MetadataDelta, record: RemoveTopicRecord) -> None:
    delta.remove_topic(record.topic_id)


def _clear_elr(delta: MetadataDelta, record: ClearElrRecord) -> None:
    """Clears the lists of partitions that have a leader. Unlike Kafka: the others keep theirs, because nobody else
    could ever lead them without loss."""
    for topic in delta.topics_named(record.topic_name):
        for index, partition in enumerate(topic.partitions):
            if partition.isr and (partition.elr or partition.last_known_elr):
                cleared = PartitionChangeRecord(
                    partition_id=index, topic_id=topic.topic_id, eligible_leader_replicas=(), last_known_elr=()
                )
                delta.put_partition(topic.topic_id, index, changed_partition(partition, cleared))


def _set_feature(delta: MetadataDelta, record: FeatureLevelRecord) -> None:
    delta.set_feature(record.name, record.feature_level)


def _allocate_producer_ids(delta: MetadataDelta, record: ProducerIdsRecord) -> None:
    before = delta.image.next_producer_id if delta.next_producer_id is None else delta.next_producer_id
    if record.next_producer_id <= before:
        raise MetadataFault(f"producer IDs go back from {before} to {record.next_producer_id}")
    delta.next_producer_id = record.next_producer_id


def _set_metadata_epoch(delta: MetadataDelta, record: NoOpRecord) -> None:
    """Sets the metadata epoch if the record has one. Kafka's own NoOpRecord only moves the offset."""
    if record.metadata_epoch is not None:
        delta.metadata_epoch = record.metadata_epoch.metadata_epoch


_REPLAY: dict[type, Callable[[MetadataDelta, Any], None]] = {
    RegisterBrokerRecord: _register_broker,
    UnregisterBrokerRecord: _unregister_broker,
    BrokerRegistrationChangeRecord: _change_registration,
    TopicRecord: _create_topic,
    PartitionRecord: _put_partition,
    PartitionChangeRecord: _change_partition,
    ConfigRecord: _set_config,
    RemoveTopicRecord: _remove_topic,
    FeatureLevelRecord: _set_feature,
    ProducerIdsRecord: _allocate_producer_ids,
    NoOpRecord: _set_metadata_epoch,
    ClearElrRecord: _clear_elr,
}
