"""The HTTP server of the control API: it guards each request, and hands it to its operation.

It listens on the loopback interface alone. Every request needs the token. A web page in somebody's browser must not
reach it either, so an Origin, or a Host that is no address of this machine, is refused.
"""

import hmac
import select
import socket
import sys
import threading
import traceback
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from crucible_kafka.control.openapi import document
from crucible_kafka.control.operation import Call, Operation, Refusal
from crucible_kafka.control.operations import operation
from crucible_kafka.library import (
    Cluster,
    CrucibleError,
    CrucibleTimeout,
    DeliveryViolated,
    RuleNeverFired,
    StartFailed,
)
from crucible_kafka.library.errors import CallerGone
from crucible_kafka.library.requests import TransportError, caller_is_gone
from reference_broker.serve.listeners import bound_port, listening_socket, shown_address
from reference_broker.serve.process import StartError

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
CLIENT_LIMIT_S: Final = 5.0
"""Limit of the time that a client takes to send its request."""
POLL_S: Final = 0.02
"""Time until ``close`` is noticed."""
MAX_BODY_BYTES: Final = 8 << 20
MAX_CONNECTIONS: Final = 64
"""Each has a thread."""
MAX_DIGITS: Final = 18
METHODS: Final = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")
"""Those that get a response of our own, if only that the path has another one."""
DOCUMENT: Final = "/openapi.json"

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED = 400, 401, 403, 404, 405
CONFLICT, LENGTH_REQUIRED, TOO_LARGE, VIOLATED = 409, 411, 413, 422
FAILED, BUSY, LATE = 500, 503, 504


class ControlServer:
    """Serves the operations of one cluster, in threads of its own. Raise StartError."""

    def __init__(self, kafka: Cluster, host: str, port: int, token: str) -> None:
        if host not in LOOPBACK:
            raise StartError(f"--control: {host} is not the loopback interface: give 127.0.0.1:PORT.")
        opened = listening_socket(host, port, "--control")
        opened.setblocking(True)
        self._server = _Server(opened, kafka, token)
        self.url = f"http://{shown_address(host, bound_port(opened))}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server, and all waits of its operations."""
        self._server.is_closing = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(CLIENT_LIMIT_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, opened: socket.socket, kafka: Cluster, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = opened
        self.call = Call(kafka)
        self.token = token.encode()
        self.is_closing = False
        self._free = threading.Semaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        body = _encoded({"error": f"{MAX_CONNECTIONS} connections are open: close some first."})
        head = f"HTTP/1.0 {BUSY} Busy\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with suppress(OSError):
            request.settimeout(CLIENT_LIMIT_S)
            request.sendall(head.encode() + body)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_LIMIT_S
    server: _Server

    def _serve(self) -> None:
        try:
            body = self._body()
            self._guard()
            status, result = self._result(body)
        except Refusal as refusal:
            self._send(refusal.status, {"error": str(refusal)})
        except CallerGone:
            self.close_connection = True
        else:
            self._send(status, result)

    def _body(self) -> bytes:
        """Return the body. It is read also before a refusal, since the client could miss the refusal otherwise."""
        if "Transfer-Encoding" in self.headers:
            raise Refusal(LENGTH_REQUIRED, "The body comes in pieces: send it at once, with Content-Length.")
        size = self.headers.get("Content-Length", "0")
        if not (size.isascii() and size.isdigit() and len(size) <= MAX_DIGITS):
            raise Refusal(BAD_REQUEST, "Content-Length is no number of bytes.")
        if int(size) > MAX_BODY_BYTES:
            raise Refusal(TOO_LARGE, f"The body has {size} bytes: send at most {MAX_BODY_BYTES}.")
        return self.rfile.read(int(size))

    def _guard(self) -> None:
        if "Origin" in self.headers or not _is_local(self.headers.get("Host", "localhost")):
            raise Refusal(FORBIDDEN, "Web pages are not served: use the address of the ready line.")
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self.server.token):
            raise Refusal(UNAUTHORIZED, "The token is missing or wrong: send Authorization: Bearer TOKEN (ready line).")

    def _result(self, body: bytes) -> tuple[int, object]:
        """Return status and body of the response. Raise Refusal."""
        parts = urlsplit(self.path)
        if parts.path == DOCUMENT and self.command == "GET":
            return 200, document()
        found, path = _operation(self.command, parts.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        if len(dict(query)) < len(query):
            raise Refusal(BAD_REQUEST, "An argument of the query is given twice.")
        caller_is_gone.set(self._is_gone)
        try:
            result = found.call(self.server.call, path, dict(query), body)
        except (Refusal, CallerGone):
            raise
        except Exception as failure:
            status = _status(failure)
            if status == FAILED:
                traceback.print_exc()
                raise Refusal(status, f"{found.name} failed: {failure!r}") from failure
            raise Refusal(status, str(failure)) from failure
        return found.status, {} if result is None else result

    def _is_gone(self) -> bool:
        """Return whether the client has closed the connection, or the server ends."""
        if self.server.is_closing:
            return True
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send(self, status: int, value: object) -> None:
        body = _encoded(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        with suppress(OSError):  # The client has gone.
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse what is no HTTP, in the form of all refusals."""
        self.close_connection = True
        self.request_version = "HTTP/1.0"  # HTTP/0.9, which it takes a bare line for, has no status.
        self._send(code, {"error": f"{message or 'This is no HTTP request'}."})

    def log_message(self, *_: object) -> None:
        """Log nothing: stderr is for what goes wrong."""


for _method in METHODS:
    setattr(_Handler, f"do_{_method}", _Handler._serve)


def _operation(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    """Return the operation of a path, and the arguments in it. Raise Refusal."""
    methods = set()
    for each in operation.listed:
        match = each.pattern.fullmatch(path)
        if match is None:
            continue
        if each.method == method:
            return each, {name: unquote(value) for name, value in match.groupdict().items()}
        methods.add(each.method)
    if methods:
        raise Refusal(METHOD_NOT_ALLOWED, f"{path} has no {method}: use {' or '.join(sorted(methods))}.")
    raise Refusal(NOT_FOUND, f"There is no {path[:200]}: GET {DOCUMENT} lists what there is.")


def _status(failure: Exception) -> int:
    """Return the status of what an operation raises."""
    if isinstance(failure, RuleNeverFired | DeliveryViolated):
        return VIOLATED
    if isinstance(failure, CrucibleTimeout | TransportError | TimeoutError):
        return LATE
    if isinstance(failure, CrucibleError):
        return FAILED if isinstance(failure, StartFailed) else CONFLICT
    return BAD_REQUEST if isinstance(failure, msgspec.MsgspecError | ValueError | RecursionError) else FAILED


def _is_local(host: str) -> bool:
    """Return whether the header ``Host`` names an address, or this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)
