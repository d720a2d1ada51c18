"""A template of an adapter in Python: replace each ``...`` by what an application of your client would write.

    ./crucible client ./template.py --section ordinary

Copy it together with ``adapter_loop.py``. The operations that your client lacks may be removed; list only features that
it has.
"""

from typing import Any

from adapter_loop import event, places, raw, serve, text

clients: dict[str, Any] = {}


def open_(client: str, role: str, bootstrap: str, client_id: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Make a producer or a consumer. ``settings`` are the portable ones of docs/client-adapters.md."""
    names = {"request_timeout_ms": "...", "reset": "..."}  # The client's own name of each setting.
    own = {names[key]: value for key, value in settings.items() if key in names}
    clients[client] = (role, bootstrap, client_id, own)  # ...
    return {"ignored": [key for key in settings if key not in names]}


def send(client: str, record: int, topic: str, value: str | None, **fields: Any) -> None:
    """Send one record, and report its outcome when it is known."""

    def done(metadata: Any) -> None:
        event("acknowledged", client, record=record, partition=metadata.partition, offset=metadata.offset)

    clients[client].send(topic, raw(value), on_delivery=done, **fields)  # ...


def assign(client: str, partitions: list[dict[str, Any]]) -> None:
    clients[client].assign([(partition["topic"], partition["partition"]) for partition in partitions])  # ...


def poll(client: str, timeout_ms: int) -> None:
    """Poll once. Records are events, before the reply."""
    for each in clients[client].poll(timeout_ms):  # ...
        event(
            "record",
            client,
            topic=each.topic,
            partition=each.partition,
            offset=each.offset,
            key=text(each.key),
            value=text(each.value),
        )


def committed(client: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"partitions": places(clients[client].committed(partitions))}  # ...


def close(client: str) -> None:
    clients.pop(client).close()


def failure(error: BaseException) -> dict[str, Any]:
    """Return Kafka's name of an error if the client has it, and how the client classifies it."""
    return {"name": type(error).__name__, "message": str(error), "retriable": None, "fatal": None}


if __name__ == "__main__":
    serve(
        {"name": "my-client", "version": "1.0", "features": ["producer", "consumer"]},
        {"open": open_, "send": send, "assign": assign, "poll": poll, "committed": committed, "close": close},
        failure,
    )
