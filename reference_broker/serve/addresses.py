"""Parses HOST:PORT and opens listening sockets. Each failure has a sentence that says what to do."""

import errno
import socket

from reference_broker.serve.process import StartError


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parses ``HOST:PORT``. An IPv6 address stands in brackets. Port 0 lets the system choose. Raises StartError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise StartError(f"{option} is {text!r}: give HOST:PORT, such as 127.0.0.1:9092.")
    return host.strip("[]"), int(port)


def listening_socket(host: str, port: int, option: str) -> socket.socket:
    """Returns a socket that listens, so that clients can connect before anyone accepts. Raises StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as failure:
        raise StartError(f"{option}: the host {host!r} is unknown; give an address of this machine.") from failure
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(1024)
    except OSError as failure:
        sock.close()
        shown = shown_address(host, port)
        if failure.errno == errno.EADDRINUSE:
            fix = "stop the process that listens there or give another port"
            raise StartError(f"{option}: {shown} is in use; {fix}.") from failure
        raise StartError(f"{option}: cannot listen on {shown} ({failure.strerror}); give another address.") from failure
    return sock


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port
