"""Finds loopback ports for processes that must know theirs, and each other's, before they start.

The ports lie below those that systems give to outgoing connections, which begin at 32768 or later. So no connection can
take a dead node's port before the node comes back. Runs side by side draw different ports.
"""

import random
import socket
from threading import Lock

FIRST, LAST = 20_000, 32_000
ATTEMPTS = 1_000

_given: set[int] = set()
_lock = Lock()
_draw = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that nobody listened on a moment ago, and never the same port twice.

    A node keeps its port over restarts, so the system cannot choose one at each start. Raises OSError if none is found.
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
    """Returns ``count`` different ports."""
    return [free_port(host) for _ in range(count)]


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True
