"""Adapter of aiokafka. One event loop runs in a thread; each operation is a coroutine in it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
from adapter_loop import event, places, raw, serve, text
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

OF_ALL = {
    "request_timeout_ms": "request_timeout_ms",
    "retry_backoff_ms": "retry_backoff_ms",
    "metadata_max_age_ms": "metadata_max_age_ms",
    "connections_max_idle_ms": "connections_max_idle_ms",
}
NAMES: dict[str, dict[str, str]] = {
    "admin": OF_ALL,
    "producer": {
        **OF_ALL,
        "acks": "acks",
        "idempotence": "enable_idempotence",
        "transactional_id": "transactional_id",
        "transaction_timeout_ms": "transaction_timeout_ms",
        "linger_ms": "linger_ms",
        "batch_bytes": "max_batch_size",
        "compression": "compression_type",
    },
    "consumer": {
        **OF_ALL,
        "group": "group_id",
        "instance": "group_instance_id",
        "isolation": "isolation_level",
        "reset": "auto_offset_reset",
        "auto_commit": "enable_auto_commit",
        "auto_commit_interval_ms": "auto_commit_interval_ms",
        "session_timeout_ms": "session_timeout_ms",
        "heartbeat_interval_ms": "heartbeat_interval_ms",
        "max_poll_interval_ms": "max_poll_interval_ms",
        "fetch_max_wait_ms": "fetch_max_wait_ms",
        "fetch_min_bytes": "fetch_min_bytes",
        "fetch_max_bytes": "fetch_max_bytes",
        "partition_max_bytes": "max_partition_fetch_bytes",
        "check_crcs": "check_crcs",
    },
}
KINDS = {"consumer": AIOKafkaConsumer, "producer": AIOKafkaProducer, "admin": AIOKafkaAdminClient}
ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
clients: dict[str, Any] = {}
tasks: set[asyncio.Task[None]] = set()
"""Deliveries that are waited for."""
loop = asyncio.new_event_loop()


def in_loop(
    operation: Callable[..., Coroutine[Any, Any, dict[str, Any] | None]],
) -> Callable[..., dict[str, Any] | None]:
    """Let the loop run an operation, and wait for it."""
    return lambda **fields: asyncio.run_coroutine_threadsafe(operation(**fields), loop).result()


async def open_(client: str, role: str, bootstrap: str, client_id: str, settings: dict[str, Any]) -> dict[str, Any]:
    names = NAMES[role]
    own: dict[str, Any] = {names[key]: value for key, value in settings.items() if key in names}
    used = {key for key in settings if key in names}
    if own.get("compression_type") == "none":
        own["compression_type"] = None
    if own.get("acks") in ("0", "1"):
        own["acks"] = int(own["acks"])
    if "transactional_id" in own:
        own["enable_idempotence"] = True
    if settings.get("assignor") in ASSIGNORS and role == "consumer":
        own["partition_assignment_strategy"] = (ASSIGNORS[settings["assignor"]],)
        used.add("assignor")
    made = KINDS[role](bootstrap_servers=bootstrap.split(","), client_id=client_id, **own)
    clients[client] = made
    await made.start()
    return {"ignored": sorted(set(settings) - used)}


# Producers


async def send(client: str, record: int, topic: str, partition: int | None = None, **fields: Any) -> None:
    sent = await clients[client].send(
        topic,
        value=raw(fields.get("value")),
        key=raw(fields.get("key")),
        partition=partition,
        headers=[(name, raw(value)) for name, value in fields.get("headers", ())],
    )
    task = asyncio.create_task(_report(client, record, sent))
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _report(client: str, record: int, sent: Any) -> None:
    try:
        metadata = await sent
    except Exception as error:
        event("failed", client, record=record, error=failure(error))
    else:
        event("acknowledged", client, record=record, partition=metadata.partition, offset=metadata.offset)


async def flush(client: str, timeout_ms: int) -> None:
    await asyncio.wait_for(clients[client].flush(), timeout_ms / 1000)
    await asyncio.gather(*tasks)


async def begin(client: str) -> None:
    await clients[client].begin_transaction()


async def send_offsets(client: str, consumer: str, offsets: list[dict[str, Any]]) -> None:
    group = clients[consumer]._group_id
    await clients[client].send_offsets_to_transaction(_offsets(offsets), group)


async def commit_transaction(client: str) -> None:
    await clients[client].commit_transaction()


async def abort_transaction(client: str) -> None:
    await clients[client].abort_transaction()


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


async def subscribe(client: str, topics: list[str]) -> None:
    clients[client].subscribe(topics, listener=Listener(client))


async def assign(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].assign([_partition(partition) for partition in partitions])
    for partition in partitions:
        if partition.get("offset") is not None:
            clients[client].seek(_partition(partition), partition["offset"])


async def seek(client: str, partition: dict[str, Any]) -> None:
    clients[client].seek(_partition(partition), partition["offset"])


async def pause(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].pause(*map(_partition, partitions))


async def resume(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].resume(*map(_partition, partitions))


async def poll(client: str, timeout_ms: int) -> None:
    for records in (await clients[client].getmany(timeout_ms=timeout_ms)).values():
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


async def commit(client: str, offsets: list[dict[str, Any]] | None = None) -> None:
    await clients[client].commit(_offsets(offsets) if offsets else None)


async def committed(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    offsets = [(partition, await clients[client].committed(_partition(partition))) for partition in partitions]
    return {"partitions": [{**each, "offset": offset} for each, offset in offsets if offset is not None]}


async def position(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    offsets = [(partition, await clients[client].position(_partition(partition))) for partition in partitions]
    return {"partitions": [{**each, "offset": offset} for each, offset in offsets]}


async def create_topic(client: str, topic: str, partitions: int = 1) -> None:
    await clients[client].create_topics([NewTopic(topic, partitions, 1)])


async def close(client: str) -> None:
    closed = clients.pop(client)
    await (closed.close() if hasattr(closed, "close") else closed.stop())
    await asyncio.gather(*tasks)


def _partition(place: dict[str, Any]) -> Any:
    return TopicPartition(place["topic"], place["partition"])


def _offsets(offsets: list[dict[str, Any]]) -> dict[Any, Any]:
    return {_partition(offset): OffsetAndMetadata(offset["offset"], offset.get("metadata") or "") for offset in offsets}


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
    threading.Thread(target=loop.run_forever, daemon=True).start()
    about = {
        "name": "aiokafka",
        "version": aiokafka.__version__,
        "features": [
            *("producer", "idempotence", "transactions", "send-offsets", "consumer", "groups", "static-membership"),
            *("pause", "admin", "gzip", "snappy", "lz4", "zstd"),
        ],
    }
    operations = (open_, send, flush, begin, send_offsets, commit_transaction, abort_transaction, subscribe, assign)
    more = (seek, pause, resume, poll, commit, committed, position, create_topic, close)
    serve(about, {operation.__name__.rstrip("_"): in_loop(operation) for operation in (*operations, *more)}, failure)
