"""The HTTP interface that adds and removes rules."""

import asyncio
import hmac
import json
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from chaos.frame_proxy.control_rules import PREFIX, ControlRules, Refusal
from chaos.frame_proxy.proxy import FrameProxy
from chaos.frame_proxy.rules_file import PROXY_KINDS_AT, read_rule
from chaos.interceptor.rules import Rule
from reference_broker.serve.listeners import bound_port, listening_socket, shown_address
from scenarios.fields import ScenarioError

T = TypeVar("T")
LIMIT_S: Final = 5.0
"""Limit of the loop's work, and of a client that sends a request."""
POLL_S: Final = 0.02
"""Time until ``close`` is noticed."""
MAX_BODY_BYTES: Final = 1 << 20
MAX_DIGITS: Final = 18
HELP: Final = f"""crucible proxy

GET    /rules        the rules, as JSON
POST   /rules        adds a rule: JSON with the keys of a [[fault]] in a scenario file (docs/scenario-keys.md)
                     with "on": "request" its kind is {", ".join(PROXY_KINDS_AT["request"])}
                     with "on": "response" it is {", ".join(PROXY_KINDS_AT["response"])}
                     node_killed and node_paused need --process NODE=PID
DELETE /rules/NAME   removes a rule
GET    /hits         the hits of the rules so far
GET    /log?since=N  what passed: entries with a greater number than N, at most 1000 at once

{PREFIX}             the rules of the control API (docs/control-api.md), with Authorization: Bearer TOKEN (ready line)
"""


class Control:
    """A server of rules. It serves in threads of its own, and does the work in the proxy's loop.

    Making one raises StartError.

    ``token`` is needed for the paths of the control API; without one they refuse all.
    """

    def __init__(
        self, proxy: FrameProxy, loop: asyncio.AbstractEventLoop, host: str, port: int, token: str = ""
    ) -> None:
        opened = listening_socket(host, port, "--control")
        opened.setblocking(True)
        self._server = ThreadingHTTPServer((host, 0), _handler(proxy, loop, token), bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = opened
        self._server.daemon_threads = True
        self.url = f"http://{shown_address(host, bound_port(opened))}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT_S)


def shown_rule(rule: Rule) -> dict[str, Any]:
    """Return what differs from a rule with all defaults."""
    default = asdict(Rule(rule.name, ""))
    shown = {key: value for key, value in asdict(rule).items() if key == "name" or value != default[key]}
    if "match" in shown:
        shown["match"] = {key: value for key, value in shown["match"].items() if value not in (None, ())}
    return shown


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _is_local(host: str) -> bool:
    """Return whether the header ``Host`` names an address, or this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def _handler(proxy: FrameProxy, loop: asyncio.AbstractEventLoop, token: str) -> type[BaseHTTPRequestHandler]:
    def in_loop(work: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as failure:
                done.set_exception(failure)

        loop.call_soon_threadsafe(run)
        return done.result(LIMIT_S)

    rules = ControlRules(proxy, in_loop)

    class Handler(BaseHTTPRequestHandler):
        timeout = LIMIT_S

        def parse_request(self) -> bool:
            """A web page in somebody's browser must not add rules or read the log. Browsers name the page's origin, or
            the host name by which the page reached this address."""
            if not super().parse_request():
                return False
            if "Origin" in self.headers or not _is_local(self.headers.get("Host", "localhost")):
                self._refuse(403, "web pages are not served; use the address that the proxy printed")
                return False
            return True

        def do_GET(self) -> None:
            url_parts = urlsplit(self.path)
            if self._is_of_control_api():
                self._respond(b"")
            elif url_parts.path == "/":
                self._send(200, HELP.encode(), "text/plain; charset=utf-8")
            elif url_parts.path == "/rules":
                self._json(200, in_loop(lambda: [shown_rule(rule) for rule in proxy.rules]))
            elif url_parts.path == "/hits":
                self._json(200, [asdict(row) for row in in_loop(lambda: tuple(proxy.hits))])
            elif url_parts.path == "/log":
                self._log(parse_qs(url_parts.query).get("since", ["0"])[0])
            else:
                self._refuse(404, f"there is no {url_parts.path}; GET / lists what there is")

        def do_POST(self) -> None:
            size = self.headers.get("Content-Length", "")
            if self._is_of_control_api():
                size = size or "0"
            elif urlsplit(self.path).path != "/rules":
                self._refuse(404, "rules are posted to /rules")
                return
            if not _is_number(size) or int(size) > MAX_BODY_BYTES:
                self._refuse(400, f"Content-Length must be a number of bytes up to {MAX_BODY_BYTES}")
                return
            body = self.rfile.read(int(size))
            if self._is_of_control_api():
                self._respond(body)
                return
            try:
                table = json.loads(body)
                if not isinstance(table, dict):
                    raise ScenarioError("a rule is a JSON object with the keys of a [[fault]]")
                rule = read_rule(table)
                in_loop(lambda: proxy.add(rule))
            except ScenarioError as wrong:
                self._refuse(400, str(wrong))
            except (ValueError, RecursionError) as wrong:
                self._refuse(400, f"the rule is not JSON: {wrong}")
            else:
                self._json(201, shown_rule(rule))

        def do_DELETE(self) -> None:
            if self._is_of_control_api():
                self._respond(b"")
                return
            _, _, name = urlsplit(self.path).path.partition("/rules/")
            name = unquote(name)
            if in_loop(lambda: proxy.remove(name)):
                self._json(200, {"removed": name})
            else:
                self._refuse(404, f"there is no rule {name!r}")

        def _is_of_control_api(self) -> bool:
            path = urlsplit(self.path).path
            return path == PREFIX or path.startswith(f"{PREFIX}/")

        def _respond(self, body: bytes) -> None:
            """Respond as the control API does."""
            scheme, _, presented = self.headers.get("Authorization", "").partition(" ")
            is_known = scheme.lower() == "bearer" and hmac.compare_digest(presented.strip().encode(), token.encode())
            if not (token and is_known):
                self._refuse(401, "The token is missing or wrong: send Authorization: Bearer TOKEN (ready line).")
                return
            try:
                status, response = rules.respond(self.command, urlsplit(self.path).path, body, self._is_gone)
            except Refusal as refusal:
                self._refuse(refusal.status, str(refusal))
            else:
                self._json(status, response)

        def _is_gone(self) -> bool:
            """Return whether the client has closed the connection."""
            try:
                readable = select.select([self.connection], [], [], 0)[0]
                return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
            except (OSError, ValueError):
                return True

        def _log(self, since: str) -> None:
            if not _is_number(since):
                self._refuse(400, f"since is {since!r}; give the number of an entry")
                return
            entries = in_loop(lambda: proxy.log.since(int(since)))
            self._send(200, msgspec.json.encode(entries), "application/json")

        def _refuse(self, status: int, sentence: str) -> None:
            self._json(status, {"error": sentence})

        def _json(self, status: int, value: object) -> None:
            self._send(status, json.dumps(value, default=str).encode(), "application/json")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            with suppress(ConnectionError):  # The client has gone.
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: stderr is for what goes wrong."""

    return Handler
