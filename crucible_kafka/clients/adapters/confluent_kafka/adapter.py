"""Adapter of confluent-kafka, and so of librdkafka."""

import threading
from typing import Any

import confluent_kafka
from adapter_loop import event, places, raw, serve, text
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

OF_ALL = {
    "request_timeout_ms": "socket.timeout.ms",
    "retry_backoff_ms": "retry.backoff.ms",
    "reconnect_backoff_ms": "reconnect.backoff.ms",
    "metadata_max_age_ms": "metadata.max.age.ms",
    "connections_max_idle_ms": "connections.max.idle.ms",
    "rack": "client.rack",
}
NAMES: dict[str, dict[str, str]] = {
    "admin": OF_ALL,
    "producer": {
        **OF_ALL,
        "acks": "acks",
        "idempotence": "enable.idempotence",
        "transactional_id": "transactional.id",
        "transaction_timeout_ms": "transaction.timeout.ms",
        "linger_ms": "linger.ms",
        "batch_bytes": "batch.size",
        "compression": "compression.type",
        "in_flight": "max.in.flight.requests.per.connection",
        "delivery_timeout_ms": "delivery.timeout.ms",
    },
    "consumer": {
        **OF_ALL,
        "group": "group.id",
        "instance": "group.instance.id",
        "group_protocol": "group.protocol",
        "assignor": "partition.assignment.strategy",
        "session_timeout_ms": "session.timeout.ms",
        "heartbeat_interval_ms": "heartbeat.interval.ms",
        "max_poll_interval_ms": "max.poll.interval.ms",
        "isolation": "isolation.level",
        "auto_commit": "enable.auto.commit",
        "auto_commit_interval_ms": "auto.commit.interval.ms",
        "fetch_max_wait_ms": "fetch.wait.max.ms",
        "fetch_min_bytes": "fetch.min.bytes",
        "fetch_max_bytes": "fetch.max.bytes",
        "partition_max_bytes": "max.partition.fetch.bytes",
        "check_crcs": "check.crcs",
    },
}
KINDS: dict[str, Any] = {"consumer": Consumer, "producer": Producer, "admin": AdminClient}
RESETS = {"earliest": "earliest", "latest": "latest", "none": "error"}
LIMIT_S = 30.0
MAX_RECORDS = 500
clients: dict[str, Any] = {}
pollers: dict[str, threading.Event] = {}
"""Set to end the thread that serves a producer's callbacks."""


def open_(client: str, role: str, bootstrap: str, client_id: str, settings: dict[str, Any]) -> dict[str, Any]:
    names = NAMES[role]
    own: dict[str, Any] = {names[key]: value for key, value in settings.items() if key in names}
    used = {key for key in settings if key in names}
    own |= {"bootstrap.servers": bootstrap, "client.id": client_id, "log_level": 0}
    own["error_cb"] = lambda error: event("failed", client, error=_of(error)) if error.fatal() else None
    if "request_timeout_ms" in settings:
        own["socket.connection.setup.timeout.ms"] = max(1000, settings["request_timeout_ms"])
    if role == "producer" and "request_timeout_ms" in settings:
        own["request.timeout.ms"] = settings["request_timeout_ms"]
    if role == "consumer":
        own["auto.offset.reset"] = RESETS[settings.get("reset", "latest")]
        own.setdefault("group.id", f"{client_id}-without-group")  # This client always wants one.
        used.add("reset")
    clients[client] = KINDS[role](own)
    if role == "producer":
        pollers[client] = threading.Event()
        threading.Thread(target=_serve_callbacks, args=(clients[client], pollers[client]), daemon=True).start()
    if "transactional_id" in settings:
        clients[client].init_transactions(LIMIT_S)
    return {"ignored": sorted(set(settings) - used)}


def _serve_callbacks(producer: Any, ended: threading.Event) -> None:
    while not ended.is_set():
        producer.poll(0.05)


# Producers


def send(client: str, record: int, topic: str, partition: int | None = None, **fields: Any) -> None:
    def done(error: Any, message: Any) -> None:
        if error is None:
            event(
                "acknowledged",
                client,
                record=record,
                partition=message.partition(),
                offset=message.offset() if message.offset() is not None else -1,
            )
        else:
            event("failed", client, record=record, error=_of(error))

    more: dict[str, Any] = {} if partition is None else {"partition": partition}
    clients[client].produce(
        topic,
        value=raw(fields.get("value")),
        key=raw(fields.get("key")),
        headers=[(name, raw(value)) for name, value in fields.get("headers", ())],
        on_delivery=done,
        **more,
    )


def flush(client: str, timeout_ms: int) -> None:
    clients[client].flush(timeout_ms / 1000)


def begin(client: str) -> None:
    clients[client].begin_transaction()


def send_offsets(client: str, consumer: str, offsets: list[dict[str, Any]]) -> None:
    metadata = clients[consumer].consumer_group_metadata()
    clients[client].send_offsets_to_transaction(list(map(_partition, offsets)), metadata, LIMIT_S)


def commit_transaction(client: str) -> None:
    clients[client].commit_transaction(LIMIT_S)


def abort_transaction(client: str) -> None:
    clients[client].abort_transaction(LIMIT_S)


# Consumers


def subscribe(client: str, topics: list[str]) -> None:
    clients[client].subscribe(
        topics,
        on_assign=lambda _, partitions: event("assigned", client, partitions=places(partitions)),
        on_revoke=lambda _, partitions: event("revoked", client, partitions=places(partitions)),
        on_lost=lambda _, partitions: event("lost", client, partitions=places(partitions)),
    )


def assign(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].assign(list(map(_partition, partitions)))


def seek(client: str, partition: dict[str, Any]) -> None:
    clients[client].seek(_partition(partition))


def pause(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].pause(list(map(_partition, partitions)))


def resume(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].resume(list(map(_partition, partitions)))


def poll(client: str, timeout_ms: int) -> None:
    """``consume`` waits for its whole time, so the first record is waited for alone."""
    first = clients[client].poll(timeout_ms / 1000)
    messages = [] if first is None else [first, *clients[client].consume(MAX_RECORDS, 0)]
    for message in messages:
        if message.error() is not None:
            event("failed", client, error=_of(message.error()))
            continue
        event(
            "record",
            client,
            topic=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
            key=text(message.key()),
            value=text(message.value()),
            headers=[[name, text(value)] for name, value in message.headers() or ()],
        )


def commit(client: str, offsets: list[dict[str, Any]] | None = None) -> None:
    given = {"offsets": list(map(_partition, offsets))} if offsets else {}
    for each in clients[client].commit(asynchronous=False, **given) or ():
        if each.error is not None:
            raise KafkaException(each.error)


def committed(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return _with_offsets(clients[client].committed(list(map(_partition, partitions)), LIMIT_S))


def position(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return _with_offsets(clients[client].position(list(map(_partition, partitions))))


def _with_offsets(partitions: Any) -> dict[str, Any]:
    return {
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "offset": partition.offset}
            for partition in partitions
            if partition.offset >= 0
        ]
    }


def create_topic(client: str, topic: str, partitions: int = 1) -> None:
    clients[client].create_topics([NewTopic(topic, partitions, 1)])[topic].result(LIMIT_S)


def close(client: str) -> None:
    closed = clients.pop(client)
    if client in pollers:
        closed.flush(LIMIT_S)
        pollers.pop(client).set()
    elif hasattr(closed, "close"):
        closed.close()


def _partition(place: dict[str, Any]) -> Any:
    made = TopicPartition(place["topic"], place["partition"])
    if place.get("offset") is not None:
        made.offset = place["offset"]
    if place.get("metadata") is not None:
        made.metadata = place["metadata"]
    return made


KAFKA_NAMES = {
    "MSG_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_MSG": "CORRUPT_MESSAGE",
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "GROUP_LOAD_IN_PROGRESS": "COORDINATOR_LOAD_IN_PROGRESS",
    "GROUP_COORDINATOR_NOT_AVAILABLE": "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR_FOR_GROUP": "NOT_COORDINATOR",
}
"""Errors that librdkafka calls by other names than Kafka."""


def _of(error: Any) -> dict[str, Any]:
    name = KAFKA_NAMES.get(error.name(), error.name())
    return {
        "name": name,
        "message": error.str(),
        "retriable": error.retriable() or name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"),
        "fatal": error.fatal(),
    }


def failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return _of(error.args[0])
    return {"name": type(error).__name__, "message": str(error), "retriable": None, "fatal": None}


if __name__ == "__main__":
    about = {
        "name": "confluent-kafka",
        "version": f"{confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})",
        "features": [
            *("producer", "idempotence", "transactions", "send-offsets", "consumer", "groups", "cooperative"),
            *("group-protocol-consumer", "static-membership", "pause", "rack", "admin"),
            *("gzip", "snappy", "lz4", "zstd"),
        ],
    }
    operations: dict[str, Any] = {"open": open_, "send": send, "flush": flush, "begin": begin}
    operations |= {"send_offsets": send_offsets, "commit_transaction": commit_transaction}
    operations |= {"abort_transaction": abort_transaction, "subscribe": subscribe, "assign": assign, "seek": seek}
    operations |= {"pause": pause, "resume": resume, "poll": poll, "commit": commit, "committed": committed}
    operations |= {"position": position, "create_topic": create_topic, "close": close}
    serve(about, operations, failure)
