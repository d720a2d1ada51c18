"""Adapter of Crucible's own client: ``reference_broker.blocking``. It has no producer without transactions."""

from typing import Any

from adapter_loop import event, places, raw, serve, text

from reference_broker.blocking.consumer import BlockingConsumer, CommitError, ConsumerError
from reference_broker.blocking.transactional_producer import BlockingTransactionalProducer, TransactionTimeoutError
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.group_membership import GroupConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import TransactionConfig
from reference_broker.client.transaction_requests import TransactionError
from reference_broker.client.transactional_producer import Delivery, ProducerConfig
from reference_broker.wire.errors import error_name

OF_BOTH = {"request_timeout_ms", "retry_backoff_ms", "metadata_max_age_ms"}
OF_CONSUMER = OF_BOTH | {
    *("reset", "isolation", "fetch_max_wait_ms", "fetch_min_bytes", "fetch_max_bytes", "partition_max_bytes", "rack"),
    *("group", "instance", "assignor", "session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms"),
    *("auto_commit", "auto_commit_interval_ms"),
}
OF_PRODUCER = OF_BOTH | {"transactional_id", "transaction_timeout_ms", "delivery_timeout_ms"}
DEFAULT_COMMIT_MS = 5000
MAX_POLL_MS = 300_000

consumers: dict[str, BlockingConsumer] = {}
producers: dict[str, BlockingTransactionalProducer] = {}
deliveries: dict[str, dict[int, Delivery]] = {}
"""By producer, what has no outcome yet."""
members: dict[str, tuple[TopicPartition, ...]] = {}
"""By consumer in a group, the partitions that were reported last."""


def open_(client: str, role: str, bootstrap: str, client_id: str, settings: dict[str, Any]) -> dict[str, Any]:
    nodes = tuple(
        NodeAddress(-1 - index, host, int(port))
        for index, (host, _, port) in enumerate(each.rpartition(":") for each in bootstrap.split(","))
    )
    make = _open_consumer if role == "consumer" else _open_producer
    make(client, nodes, client_id, settings)
    known = OF_CONSUMER if role == "consumer" else OF_PRODUCER
    return {"ignored": sorted(set(settings) - known)}


def _micros(settings: dict[str, Any], **names: str) -> dict[str, Any]:
    return {name: settings[key] * 1000 for name, key in names.items() if key in settings}


def _open_consumer(client: str, nodes: tuple[NodeAddress, ...], client_id: str, settings: dict[str, Any]) -> None:
    times = _micros(settings, request_timeout_us="request_timeout_ms", backoff_us="retry_backoff_ms")
    fetch_names = {
        "fetch_max_wait_ms": "max_wait_ms",
        "fetch_min_bytes": "min_bytes",
        "fetch_max_bytes": "max_bytes",
        "partition_max_bytes": "partition_max_bytes",
        "reset": "reset",
        "rack": "rack",
    }
    fetch = FetchSettings(
        **{name: settings[key] for key, name in fetch_names.items() if key in settings},
        request_timeout_us=times.get("request_timeout_us", FetchSettings().request_timeout_us),
        read_committed=settings.get("isolation") == "read_committed",
    )
    group = None
    if "group" in settings:
        of_group = _micros(
            settings,
            session_timeout_us="session_timeout_ms",
            heartbeat_interval_us="heartbeat_interval_ms",
            rebalance_timeout_us="max_poll_interval_ms",
        )
        assignor: dict[str, Any] = {"protocols": (settings["assignor"],)} if "assignor" in settings else {}
        group = GroupConfig(
            settings["group"], (), instance_id=settings.get("instance"), **times, **of_group, **assignor
        )
    config = ConsumerConfig(
        nodes, group, False, fetch, **times, **_micros(settings, metadata_max_age_us="metadata_max_age_ms")
    )
    interval_ms = settings.get("auto_commit_interval_ms", DEFAULT_COMMIT_MS) if settings.get("auto_commit") else None
    consumers[client] = BlockingConsumer(
        config,
        client_id,
        interval_ms if group is not None else None,
        lambda partitions: _revoked(client, partitions),
        settings.get("request_timeout_ms", 2000),
        settings.get("max_poll_interval_ms", MAX_POLL_MS),
    )


def _open_producer(client: str, nodes: tuple[NodeAddress, ...], client_id: str, settings: dict[str, Any]) -> None:
    assert "transactional_id" in settings, "this client has transactional producers only"
    times = _micros(settings, request_timeout_us="request_timeout_ms", backoff_us="retry_backoff_ms")
    transaction = TransactionConfig(
        settings["transactional_id"], **times, **_micros(settings, transaction_timeout_us="transaction_timeout_ms")
    )
    more = _micros(settings, delivery_timeout_us="delivery_timeout_ms", metadata_max_age_us="metadata_max_age_ms")
    producer = BlockingTransactionalProducer(
        ProducerConfig(nodes, transaction, **times, **more), client_id, settings.get("request_timeout_ms", 2000)
    )
    producers[client], deliveries[client] = producer, {}
    producer.init_transactions()


# Producers


def send(client: str, record: int, topic: str, partition: int | None = None, **fields: Any) -> None:
    headers = tuple((name, raw(value)) for name, value in fields.get("headers", ()))
    where = TopicPartition(topic, partition or 0)
    try:
        delivery = producers[client].send(where, raw(fields.get("value")), raw(fields.get("key")), headers)
        deliveries[client][record] = delivery
    finally:
        _report(client)


def _report(client: str) -> None:
    """Write the outcomes that are known by now."""
    waiting = deliveries[client]
    for number, each in list(waiting.items()):
        if each.is_written:
            event("acknowledged", client, record=number, partition=each.where.partition, offset=each.base_offset)
        elif each.error is not None:
            name = error_name(int(each.error))
            event("failed", client, record=number, error={"name": name, "retriable": None, "fatal": None})
        if each.is_settled:
            del waiting[number]


def flush(client: str, timeout_ms: int) -> None:
    try:
        producers[client].flush(timeout_ms)
    finally:
        _report(client)


def begin(client: str) -> None:
    producers[client].begin()


def send_offsets(client: str, consumer: str, offsets: list[dict[str, Any]]) -> None:
    producers[client].send_offsets(_offsets(offsets), consumers[consumer].group_identity())


def commit_transaction(client: str) -> None:
    try:
        producers[client].commit()
    finally:
        _report(client)


def abort_transaction(client: str) -> None:
    try:
        producers[client].abort()
    finally:
        _report(client)


# Consumers


def subscribe(client: str, topics: list[str]) -> None:
    members[client] = ()
    consumers[client].subscribe(topics)


def assign(client: str, partitions: list[dict[str, Any]]) -> None:
    consumers[client].assign([_partition(partition) for partition in partitions])
    for partition in partitions:
        if partition.get("offset") is not None:
            consumers[client].seek(_partition(partition), partition["offset"])


def seek(client: str, partition: dict[str, Any]) -> None:
    consumers[client].seek(_partition(partition), partition["offset"])


def poll(client: str, timeout_ms: int) -> None:
    try:
        records = consumers[client].poll(timeout_ms)
    finally:
        _report_assignment(client)
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


def _report_assignment(client: str) -> None:
    if client not in members:
        return
    now = consumers[client].assignment()
    new = [each for each in now if each not in members[client]]
    gone = [each for each in members[client] if each not in now]
    if gone:
        event("lost", client, partitions=places(gone))
    if new:
        event("assigned", client, partitions=places(new))
    members[client] = now


def _revoked(client: str, partitions: tuple[TopicPartition, ...]) -> None:
    event("revoked", client, partitions=places(partitions))
    members[client] = tuple(each for each in members[client] if each not in partitions)


def commit(client: str, offsets: list[dict[str, Any]] | None = None) -> None:
    consumers[client].commit(_offsets(offsets) if offsets else None)


def position(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    offsets = [(partition, consumers[client].position(_partition(partition))) for partition in partitions]
    return {"partitions": [{**each, "offset": offset} for each, offset in offsets if offset >= 0]}


def close(client: str) -> None:
    if client in producers:
        producers.pop(client).close()
    else:
        consumers.pop(client).close()


def _partition(place: dict[str, Any]) -> TopicPartition:
    return TopicPartition(place["topic"], place["partition"])


def _offsets(places_: list[dict[str, Any]]) -> dict[TopicPartition, OffsetToCommit]:
    return {
        _partition(place): OffsetToCommit(
            place["offset"], place.get("leader_epoch") or -1, metadata=place.get("metadata") or ""
        )
        for place in places_
    }


def failure(error: BaseException) -> dict[str, Any]:
    message = str(error)
    if isinstance(error, TransactionError):
        name = error_name(int(error.error)) if hasattr(error, "error") else type(error).__name__
        return {"name": name, "message": message, "retriable": False, "fatal": not error.is_abortable}
    if isinstance(error, TransactionTimeoutError):
        return {"name": "TIMEOUT", "message": message, "retriable": True, "fatal": False}
    if isinstance(error, ConsumerError):
        is_commit = isinstance(error, CommitError)
        return {"name": error_name(int(error.error)), "message": message, "fatal": False, "retriable": is_commit}
    return {"name": type(error).__name__, "message": message, "retriable": None, "fatal": None}


if __name__ == "__main__":
    serve(
        {
            "name": "crucible",
            "version": "0.2.0",
            "features": [
                *("transactions", "send-offsets", "consumer", "groups", "cooperative", "static-membership", "rack"),
                *("gzip", "snappy", "lz4", "zstd"),
            ],
        },
        {
            "open": open_,
            "send": send,
            "flush": flush,
            "begin": begin,
            "send_offsets": send_offsets,
            "commit_transaction": commit_transaction,
            "abort_transaction": abort_transaction,
            "subscribe": subscribe,
            "assign": assign,
            "seek": seek,
            "poll": poll,
            "commit": commit,
            "position": position,
            "close": close,
        },
        failure,
    )
