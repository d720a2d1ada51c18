"""A broker that knows ApiVersions 0 and Metadata 1, and ends at a request of another API: ``mortal_broker.py PORT``."""

import os
import socket
import struct
import sys
import threading

API_VERSIONS, METADATA = 18, 3
HOST = b"127.0.0.1"


def main(port: int) -> None:
    with socket.create_server((HOST.decode(), port)) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection, port), daemon=True).start()


def _serve(connection: socket.socket, port: int) -> None:
    with connection, connection.makefile("rb") as stream:
        while length := stream.read(4):
            frame = stream.read(int.from_bytes(length, "big"))
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame)
            if api_key not in (API_VERSIONS, METADATA):
                print(f"panic: no handler for API {api_key}", file=sys.stderr, flush=True)  # noqa: T201
                os._exit(3)
            body = _versions() if api_key == API_VERSIONS else _metadata(port)
            connection.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)


def _versions() -> bytes:
    """Return the response: no error, and the ranges of both APIs."""
    return struct.pack(">hi", 0, 2) + struct.pack(">hhh", API_VERSIONS, 0, 0) + struct.pack(">hhh", METADATA, 0, 1)


def _metadata(port: int) -> bytes:
    """Return the response: one broker, which is the controller, and no topics."""
    broker = struct.pack(">ih", 0, len(HOST)) + HOST + struct.pack(">ih", port, -1)
    return struct.pack(">i", 1) + broker + struct.pack(">ii", 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
