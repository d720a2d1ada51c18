"""Free ports, and the process that listens at a port.

Processes must know their loopback ports, and each other's, before they start. The ports lie below those that systems
give to outgoing connections, which begin at 32768 or later. So no connection can take a dead node's port before the
node comes back. Runs side by side draw different ports.
"""

import random
import socket
import ssl
from contextlib import suppress
from threading import Lock

FIRST, LAST = 20_000, 32_000
ATTEMPTS = 1_000
CONNECT_LIMIT_S = 2.0
FIRST_BYTES_S = 0.5
"""A broker that is ready responds to ApiVersions much faster, and so does an HTTP or TLS server in its own protocol."""
API_VERSIONS_0 = bytes.fromhex("0000000e 0012 0000 00000001 0004 70726f62")
"""Length, key 18, version 0, correlation 1, client ID ``prob``."""
_HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""An alert, and a part of a handshake."""

_given: set[int] = set()
_lock = Lock()
_draw = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listened on a moment ago, and never the same port twice.

    A node keeps its port over restarts, so the system cannot choose one at each start. Raise OSError if none is found.
    """
    for _ in range(ATTEMPTS):
        port = _draw.randint(FIRST, LAST)
        with _lock:
            if port in _given:
                continue
            if _is_free(host, port):
                _given.add(port)
                return port
    raise OSError(f"no free port between {FIRST} and {LAST} on {host}")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ``count`` different ports."""
    return [free_port(host) for _ in range(count)]


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def stranger_at(host: str, port: int) -> str:
    """Return what speaks there if it is HTTP or TLS, in one sentence; empty if it is Kafka's protocol, or unknown.

    A Kafka request makes many such servers wait for more bytes, and they would be taken for a broker that is silent.
    Only a server that does not respond soon gets a request in its own protocol.
    """
    found = _first_bytes(host, port, API_VERSIONS_0)
    if found is None or found.startswith(b"\0"):
        return ""
    found = found or _first_bytes(host, port, _HTTP_REQUEST) or _first_bytes(host, port, _client_hello()) or b""
    if found.startswith(b"HTTP"):
        return f"What answers at {host}:{port} speaks HTTP, not the Kafka protocol: give a broker's address."
    if found.startswith(_TLS_RECORDS):
        return f"What answers at {host}:{port} speaks TLS, which this suite does not: give an address without TLS."
    return ""


def _first_bytes(host: str, port: int, request: bytes) -> bytes | None:
    """Return the first bytes of the response, none if none comes soon. None: nothing accepts a connection."""
    try:
        connection = socket.create_connection((host, port), CONNECT_LIMIT_S)
    except (OSError, UnicodeError):  # UnicodeError: the host can be no name.
        return None
    with connection:
        try:
            connection.settimeout(FIRST_BYTES_S)
            connection.sendall(request)
            return connection.recv(4096)  # All that came: else the other side would get a reset.
        except OSError:
            return b""


def _client_hello() -> bytes:
    """Return the first record of a TLS handshake."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()
