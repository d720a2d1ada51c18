"""Loopback ports for processes that must know theirs, and each other's, before they start."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listened on a moment ago. A node keeps its port over restarts, so it cannot let the system
    choose at each start."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port
