"""A server that is no broker: it does to each connection what a test says."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.probe.broker import Address


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Yield the address of a server that gives each connection to ``serve``, and then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
