"""Refusals of the command before it starts anything."""

import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bench.probe.tests.scripted_server import serving
from chaos.frame_proxy.proxy import AdvertisedNode
from chaos.frame_proxy.proxy_command import ProxyOptions, _processes_of, _runs, run_proxy
from chaos.live.errors import SetupError
from chaos.live.external import target as external_target

NO_BROKER = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ProxyOptions(NO_BROKER), f"No broker answers at {NO_BROKER}"),
        (ProxyOptions("nowhere"), "give HOST:PORT"),
        (ProxyOptions("127.0.0.1:²"), "give HOST:PORT"),
        (ProxyOptions("a..b:9092"), "No broker answers at a..b:9092"),
        (ProxyOptions(NO_BROKER, listen="0.0.0.0:0"), "not the loopback interface"),
        (ProxyOptions(NO_BROKER, control="everywhere"), "--control is 'everywhere'"),
        (ProxyOptions(NO_BROKER, rules=Path("missing.toml")), "cannot be read"),
    ],
)
def test_start_that_cannot_be_is_one_sentence(
    options: ProxyOptions, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.live.external.target.PATIENCE_S", 0.0)
    assert run_proxy(options) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.thorough
def test_web_server_is_recognized_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As in ``crucible run`` and ``crucible fleet``, which look at their target in the same way."""

    def serve(connection: socket.socket) -> None:
        while request := connection.recv(4096):
            if request.startswith(b"GET"):
                connection.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")

    with serving(serve) as (host, port):
        assert run_proxy(ProxyOptions(f"{host}:{port}")) == 2
        with pytest.raises(SetupError, match=r"--target: What answers at .* speaks HTTP, not the Kafka protocol"):
            external_target.discover(f"{host}:{port}")
    assert f"What answers at {host}:{port} speaks HTTP" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        ({1: os.getpid()}, "--process: node 1 is not among the target's: 0.\n"),
        ({0: 2**22 + 1}, f"--process: process {2**22 + 1} of node 0: No such process.\n"),
    ],
)
def test_process_that_cannot_be_killed_is_one_sentence(
    processes: dict[int, int], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.frame_proxy.proxy_command.nodes_of", lambda _: [AdvertisedNode(0, "127.0.0.1", 9)])
    monkeypatch.setattr("chaos.frame_proxy.proxy_command._serve", None)
    assert run_proxy(ProxyOptions(NO_BROKER, processes=processes)) == 2
    assert capsys.readouterr().err == f"crucible proxy: {message}"


def test_more_nodes_than_ports_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "chaos.frame_proxy.proxy_command.nodes_of", lambda _: [AdvertisedNode(each, "127.0.0.1", 9) for each in (0, 1)]
    )
    monkeypatch.setattr("chaos.frame_proxy.proxy_command._serve", None)
    assert run_proxy(ProxyOptions(NO_BROKER, listen="127.0.0.1:65535")) == 2
    message = "--listen is 127.0.0.1:65535, and 2 nodes need the ports from it on: give a lower one."
    assert capsys.readouterr().err == f"crucible proxy: {message}\n"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP, not the Kafka protocol"),
        (b"\x7f\xff\xff\xff", "does not speak Kafka (garbled: a frame of 2147483647 bytes)"),
        (b"\0\0\0\4\0\0\0\7", "does not speak Kafka (garbled"),
    ],
)
def test_target_that_does_not_speak_kafka_is_known_at_once(
    response: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(response)
        with suppress(ConnectionError):
            client.recv(1000)

    with serving(serve) as (host, port):
        began = time.monotonic()
        assert run_proxy(ProxyOptions(f"{host}:{port}")) == 2
        assert time.monotonic() - began < external_target.PATIENCE_S / 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.thorough
def test_silent_target_is_refused_soon_after_timeout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.live.external.target.PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        assert run_proxy(ProxyOptions(f"127.0.0.1:{server.getsockname()[1]}")) == 2
        assert time.monotonic() - began < 4
    assert "No broker answers at" in capsys.readouterr().err


@pytest.mark.live
def test_process_that_has_ended_runs_no_more_before_and_after_its_status_is_collected() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        (process,) = _processes_of({0: child.pid}, [AdvertisedNode(0, "127.0.0.1", 9092)]).values()
        assert _runs(process)
        child.kill()
        until = time.monotonic() + 30
        while _runs(process) and time.monotonic() < until:
            time.sleep(0.01)
        assert not _runs(process)
        child.wait()
        assert not _runs(process)
