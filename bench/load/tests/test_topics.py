"""Topics of a load: what happens if no broker responds, or if the brokers end before the load."""

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from bench.load import topics as module
from bench.load.topics import TopicError, topics_for
from reference_broker.blocking.transport import ConnectError


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_address_without_a_broker_is_named_and_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REACH_S", 0.2)
    monkeypatch.setattr(module._Admin, "delete", lambda *_: pytest.fail("nothing was created"))
    port = free_port()
    with pytest.raises(TopicError, match=f"no Kafka broker responds at 127.0.0.1:{port} .refused"):  # noqa: SIM117
        with topics_for([("127.0.0.1", port)], ["t"], 1, 1):
            pytest.fail("there is no broker")


def test_server_of_another_protocol_is_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REACH_S", 0.1)
    monkeypatch.setattr(module, "REACH_MS", 100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with (
            pytest.raises(TopicError, match="no Kafka broker responds"),
            topics_for([("127.0.0.1", port)], ["t"], 1, 1),
        ):
            pytest.fail("there is no broker")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_deletion_after_a_failure_gives_up_soon(monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]) -> None:
    monkeypatch.setattr(module, "DELETE_LIMIT_S", 0.2)
    calls: list[int] = []

    def refuse(_address: Sequence[Any], api_key: int, *_: object) -> object:
        calls.append(api_key)
        raise ConnectError("refused")

    for name in ("reach", "create", "await_leaders"):
        monkeypatch.setattr(module._Admin, name, lambda *_: None)
    monkeypatch.setattr(module._Admin, "_call", staticmethod(refuse))
    with pytest.raises(failure), topics_for([("127.0.0.1", 1)], ["t"], 1, 1):
        raise failure
    assert 1 <= len(calls) <= 4
    calls.clear()
    with pytest.raises(failure), topics_for([("127.0.0.1", 1)], ["t"], 1, 1, outlive_failures=False):
        raise failure
    assert not calls
