"""Responses of the HTTP interface to requests that no client should send."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from chaos.frame_proxy.control import MAX_BODY_BYTES, Control
from chaos.frame_proxy.proxy import FrameProxy, ProxyPlan

POST = b"POST /rules HTTP/1.1\r\nContent-Length: %b\r\n\r\n"
DEEP = b"[" * 100_000


def _response(url: str, request: bytes) -> bytes:
    host, _, port = urlsplit(url).netloc.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(request)
        response = b""
        while part := client.recv(65_536):
            response += part
    return response


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (POST % b"x", b"400"),
        (POST % b"-1", b"400"),
        (POST % str(MAX_BODY_BYTES + 1).encode(), b"400"),
        (POST % str(len(DEEP)).encode() + DEEP, b"400"),
        (b"POST /rules HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /log?since=" + b"9" * 5_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (POST % b"50" + b"{", b""),
        (b"GET /log HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", b"200"),
        (b"GET /log HTTP/1.1\r\nHost: localhost:80\r\n\r\n", b"200"),
        (b"GET /log HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"200"),
        (b"GET /log HTTP/1.1\r\nHost: a-page.example:80\r\n\r\n", b"403"),
        (b"GET /log HTTP/1.1\r\nHost: [\r\n\r\n", b"403"),
        (b"POST /rules HTTP/1.1\r\nOrigin: http://a-page.example\r\nContent-Length: 2\r\n\r\n{}", b"403"),
    ],
)
def test_bad_request_is_refused_in_one_sentence(
    request_bytes: bytes, status: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.frame_proxy.control.LIMIT_S", 1.0)

    async def play() -> bytes:
        loop = asyncio.get_running_loop()
        proxy = FrameProxy(ProxyPlan())
        served = Control(proxy, loop, "127.0.0.1", 0)
        try:
            return await loop.run_in_executor(None, _response, served.url, request_bytes)
        finally:
            await loop.run_in_executor(None, served.close)
            proxy.close()

    assert asyncio.run(play())[9:12] == status
    assert capfd.readouterr().err == ""
