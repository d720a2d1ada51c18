"""Servers that are no brokers: an address that is silent, refuses, responds with garbage, or forwards to a broker."""

import socket
import threading
from contextlib import suppress
from typing import Final

MAX_WAITING: Final = 64
READ_BYTES: Final = 65_536


class RawServer:
    """A server on loopback. It counts connections, so that a case can show that the client came."""

    def __init__(self, response: bytes | None = None, is_listening: bool = True) -> None:
        """``response`` is sent whenever bytes have come. Without it the server reads and is silent. One that does not
        listen has its port to itself, and connections to it are refused."""
        self._response = response
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.accepted = 0
        """The number of connections so far."""
        if is_listening:
            self._socket.listen(MAX_WAITING)
            threading.Thread(target=self._accept, name="raw-server", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # It wakes the thread that accepts.
        for connection in (self._socket, *self._connections):
            with suppress(OSError):
                connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.accepted += 1
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), name="raw-server", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while connection.recv(READ_BYTES):
                if self._response is not None:
                    connection.sendall(self._response)


class Forwarder:
    """An address of its own for a broker. Until ``open`` its port refuses connections, and after ``close`` again."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._ends: list[socket.socket] = []
        self.accepted = 0
        """The number of connections so far."""

    def open(self) -> None:
        """Begin to accept connections."""
        self._socket.listen(MAX_WAITING)
        threading.Thread(target=self._accept, name="forwarder", daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on, and break those that are open."""
        for end in (self._socket, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self.accepted += 1
                broker = socket.create_connection(self._target)
                self._ends += [client, broker]
                for pair in ((client, broker), (broker, client)):
                    threading.Thread(target=_pump, args=pair, name="forwarder", daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(READ_BYTES):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
