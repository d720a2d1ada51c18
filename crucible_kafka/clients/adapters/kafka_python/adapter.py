"""Adapter of kafka-python."""

from typing import Any

import kafka
from adapter_loop import event, places, raw, serve, text
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, codec
from kafka.structs import OffsetAndMetadata

SAME = (
    *("request_timeout_ms", "retry_backoff_ms", "reconnect_backoff_ms", "metadata_max_age_ms", "acks", "linger_ms"),
    *("connections_max_idle_ms", "transactional_id", "transaction_timeout_ms", "delivery_timeout_ms", "check_crcs"),
    *("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "auto_commit_interval_ms"),
    *("fetch_max_wait_ms", "fetch_min_bytes", "fetch_max_bytes"),
)
NAMES = {
    **{each: each for each in SAME},
    "rack": "client_rack",
    "idempotence": "enable_idempotence",
    "batch_bytes": "batch_size",
    "compression": "compression_type",
    "in_flight": "max_in_flight_requests_per_connection",
    "group": "group_id",
    "instance": "group_instance_id",
    "isolation": "isolation_level",
    "reset": "auto_offset_reset",
    "auto_commit": "enable_auto_commit",
    "partition_max_bytes": "max_partition_fetch_bytes",
}
KINDS = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}
clients: dict[str, Any] = {}


def open_(client: str, role: str, bootstrap: str, client_id: str, settings: dict[str, Any]) -> dict[str, Any]:
    kind = KINDS[role]
    known = kind.DEFAULT_CONFIG
    own = {NAMES[key]: value for key, value in settings.items() if NAMES.get(key) in known}
    used = {key for key in settings if NAMES.get(key) in known}
    if own.get("compression_type") == "none":
        own["compression_type"] = None
    if "assignor" in settings and role == "consumer":
        own["partition_assignment_strategy"] = [_assignor(settings["assignor"])]
        used.add("assignor")
    if own.get("acks") in ("0", "1"):
        own["acks"] = int(own["acks"])
    if "transactional_id" in own:
        own["enable_idempotence"] = True
    if "bootstrap_timeout_ms" in known:
        own["bootstrap_timeout_ms"] = 3 * int(settings["request_timeout_ms"])  # One timeout for each address of a case.
    if role == "consumer" and int(kafka.__version__.split(".")[0]) < 3:
        # Before 3.0 a request timeout must exceed the session timeout, since a JoinGroup waits.
        own["request_timeout_ms"] = max(own["request_timeout_ms"], own.get("session_timeout_ms", 0) + 100)
    clients[client] = kind(bootstrap_servers=bootstrap.split(","), client_id=client_id, **own)
    if "transactional_id" in own:
        clients[client].init_transactions()
    return {"ignored": sorted(set(settings) - used)}


def _assignor(name: str) -> Any:
    if name == "roundrobin":
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        return RoundRobinPartitionAssignor
    if name == "cooperative-sticky":
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

        return CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    return RangePartitionAssignor


# Producers


def send(client: str, record: int, topic: str, partition: int | None = None, **fields: Any) -> None:
    def done(metadata: Any) -> None:
        event("acknowledged", client, record=record, partition=metadata.partition, offset=metadata.offset)

    def failed(error: BaseException) -> None:
        event("failed", client, record=record, error=failure(error))

    sent = clients[client].send(
        topic,
        value=raw(fields.get("value")),
        key=raw(fields.get("key")),
        partition=partition,
        headers=[(name, raw(value)) for name, value in fields.get("headers", ())],
    )
    sent.add_callback(done).add_errback(failed)


def flush(client: str, timeout_ms: int) -> None:
    clients[client].flush(timeout_ms / 1000)


def begin(client: str) -> None:
    clients[client].begin_transaction()


def send_offsets(client: str, consumer: str, offsets: list[dict[str, Any]]) -> None:
    clients[client].send_offsets_to_transaction(_offsets(offsets), clients[consumer].group_metadata())


def commit_transaction(client: str) -> None:
    clients[client].commit_transaction()


def abort_transaction(client: str) -> None:
    clients[client].abort_transaction()


# Consumers


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reports what the group assigns and takes."""

    def __init__(self, client: str) -> None:
        self._client = client

    def on_partitions_assigned(self, assigned: Any) -> None:
        event("assigned", self._client, partitions=places(assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        if revoked:
            event("revoked", self._client, partitions=places(revoked))

    def on_partitions_lost(self, lost: Any) -> None:
        event("lost", self._client, partitions=places(lost))


def subscribe(client: str, topics: list[str]) -> None:
    clients[client].subscribe(topics, listener=Listener(client))


def assign(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].assign([_partition(partition) for partition in partitions])
    for partition in partitions:
        if partition.get("offset") is not None:
            clients[client].seek(_partition(partition), partition["offset"])


def seek(client: str, partition: dict[str, Any]) -> None:
    clients[client].seek(_partition(partition), partition["offset"])


def pause(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].pause(*map(_partition, partitions))


def resume(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].resume(*map(_partition, partitions))


def poll(client: str, timeout_ms: int) -> None:
    for records in clients[client].poll(timeout_ms=timeout_ms).values():
        for record in records:
            event(
                "record",
                client,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                key=text(record.key),
                value=text(record.value),
                headers=[[name, text(value)] for name, value in record.headers],
            )


def commit(client: str, offsets: list[dict[str, Any]] | None = None) -> None:
    clients[client].commit(_offsets(offsets) if offsets else None)


def committed(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    offsets = [(partition, clients[client].committed(_partition(partition))) for partition in partitions]
    return {"partitions": [{**each, "offset": offset} for each, offset in offsets if offset is not None]}


def position(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    offsets = [(partition, clients[client].position(_partition(partition))) for partition in partitions]
    return {"partitions": [{**each, "offset": offset} for each, offset in offsets if offset is not None]}


def create_topic(client: str, topic: str, partitions: int = 1) -> None:
    from kafka.admin import NewTopic

    clients[client].create_topics([NewTopic(topic, partitions, 1)])


def close(client: str) -> None:
    clients.pop(client).close()


def _partition(place: dict[str, Any]) -> Any:
    return TopicPartition(place["topic"], place["partition"])


def _offsets(offsets: list[dict[str, Any]]) -> dict[Any, Any]:
    own = {}
    for offset in offsets:
        fields = {"offset": offset["offset"], "metadata": offset.get("metadata") or "", "leader_epoch": -1}
        if offset.get("leader_epoch") is not None:
            fields["leader_epoch"] = offset["leader_epoch"]
        own[_partition(offset)] = OffsetAndMetadata(**{name: fields[name] for name in OffsetAndMetadata._fields})
    return own


def failure(error: BaseException) -> dict[str, Any]:
    name = getattr(error, "message", "")
    is_named = isinstance(name, str) and name.isupper() and getattr(error, "errno", -1) >= 0
    return {
        "name": name if is_named else type(error).__name__,
        "message": str(error),
        "retriable": getattr(error, "retriable", None),
        "fatal": None,
    }


if __name__ == "__main__":
    about = {
        "name": "kafka-python",
        "version": kafka.__version__,
        "features": [
            *("producer", "idempotence", "transactions", "send-offsets", "consumer", "groups", "cooperative"),
            *("static-membership", "pause", "rack", "admin", "gzip", "snappy", "lz4", "zstd"),
        ],
    }
    lacks: tuple[str, ...] = () if codec.has_snappy() else ("snappy",)  # It comes with a library of its own.
    lacks += () if codec.has_lz4() else ("lz4",)
    lacks += () if codec.has_zstd() else ("zstd",)
    if not hasattr(KafkaProducer, "init_transactions"):  # Before 2.1.
        lacks += ("idempotence", "transactions", "send-offsets", "cooperative", "static-membership", "rack")
    about["features"] = [feature for feature in about["features"] if feature not in lacks]
    operations = {"open": open_, "send": send, "flush": flush, "begin": begin, "send_offsets": send_offsets}
    operations |= {"commit_transaction": commit_transaction, "abort_transaction": abort_transaction}
    operations |= {"subscribe": subscribe, "assign": assign, "seek": seek, "pause": pause, "resume": resume}
    operations |= {"poll": poll, "commit": commit, "committed": committed, "position": position, "close": close}
    serve(about, {**operations, "create_topic": create_topic}, failure)
