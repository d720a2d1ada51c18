"""Loopback ports for processes that must know theirs, and each other's, before they start.

They lie below those that systems give to outgoing connections (from 32768 on at the earliest): while a node is dead no
connection of anybody may take the port that it comes back to. Runs side by side draw different ones.
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
    """A port that nobody listened on a moment ago, never the same twice. A node keeps its port over restarts, so it
    cannot let the system choose at each start. Raises OSError if none is found."""
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
    """As many, all different."""
    return [free_port(host) for _ in range(count)]


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True
