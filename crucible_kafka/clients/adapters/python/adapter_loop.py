"""The loop of an adapter in Python: it reads requests, calls functions, and writes replies and events.

Copy this file beside an adapter. It needs the standard library alone, and knows no client.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = 1
_LOCK = threading.Lock()


def write(message: Mapping[str, Any]) -> None:
    """Write one line. Callbacks of a client may call it in any thread."""
    line = json.dumps(message)
    with _LOCK:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def event(name: str, client: str, **fields: Any) -> None:
    """Write an event: acknowledged, failed, record, assigned, revoked, lost, committed, log."""
    write({"event": name, "client": client, **fields})


def text(value: bytes | None) -> str | None:
    """Return a key or value as the protocol has it."""
    return None if value is None else value.decode(errors="replace")


def raw(value: str | None) -> bytes | None:
    """Return a key or value as clients take it."""
    return None if value is None else value.encode()


def places(partitions: Any) -> list[dict[str, Any]]:
    """Return objects with ``topic`` and ``partition`` as the protocol has them."""
    return [{"topic": partition.topic, "partition": partition.partition} for partition in partitions]


def serve(
    about: Mapping[str, Any],
    operations: Mapping[str, Callable[..., Mapping[str, Any] | None]],
    failure: Callable[[BaseException], Mapping[str, Any]],
) -> None:
    """Serve requests until the input ends. ``operations`` are functions by name; each gets the request's fields and
    returns its result, or None for an empty one. ``failure`` makes an error of the protocol from an exception."""
    for line in sys.stdin:
        request = json.loads(line)
        name, number = request.pop("op"), request.pop("id")
        if name == "hello":
            write({"id": number, "result": {"schema": SCHEMA, "language": "Python", **about}})
            continue
        try:
            result = operations[name](**request) or {}
        except Exception as error:
            write({"id": number, "error": dict(failure(error))})
        else:
            write({"id": number, "result": dict(result)})
