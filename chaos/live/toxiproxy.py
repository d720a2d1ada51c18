"""A client of one Toxiproxy server.

The library keeps one server's address in a class for the whole process, waits without limit, and ignores responses with
a status of 5xx. Here each client has its own server, each call a time limit, and each failure is a ToxiproxyError. The
library is imported when a client is created, because a cluster without proxies must start without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 5.0
NOT_FOUND = 404


class ToxiproxyError(Exception):
    """Toxiproxy refused a call, failed, or did not respond in time. ``status`` is HTTP's, and 0 without a response."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Toxiproxy:
    """The server whose HTTP interface is at ``host`` and ``port``. Every method raises ToxiproxyError."""

    def __init__(self, host: str, port: int) -> None:
        from toxiproxy.api import APIConsumer

        self.address = f"{host}:{port}"
        # The library's calls are class methods that read the class's own host and port.
        self._consumer: Any = type("Consumer", (APIConsumer,), {"host": host, "port": port})

    def call(self, verb: str, path: str, **words: object) -> Any:
        """Return the decoded JSON of the response, or None without one. ``verb`` is get, post or delete."""
        import requests
        from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

        status = {InvalidToxic: 400, NotFound: NOT_FOUND, ProxyExists: 409}
        call = f"{verb} {path} of Toxiproxy at {self.address}"
        try:
            response = getattr(self._consumer, verb)(path, timeout=TIMEOUT_S, **words)
        except (ProxyExists, NotFound, InvalidToxic) as failure:
            raise ToxiproxyError(f"{call} was refused: {failure}", status[type(failure)]) from failure
        except requests.RequestException as failure:
            raise ToxiproxyError(f"{call} got no response: {failure}") from failure
        if response.status_code >= 400:
            raise ToxiproxyError(f"{call} failed with status {response.status_code}", response.status_code)
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.json() if is_json and response.content else None

    def create(self, upstream: str, name: str, listen: str) -> "LinkProxy":
        """Make a proxy. With port 0 in ``listen``, HOST:PORT, the proxy reports the port that it got."""
        made = self.call("post", "/proxies", json={"upstream": upstream, "name": name, "listen": listen})
        return LinkProxy(self, name, made["listen"], upstream)

    def reset(self) -> None:
        """Enable all proxies and remove all toxics."""
        self.call("post", "/reset")


@dataclass(frozen=True, slots=True)
class LinkProxy:
    """A proxy of the Toxiproxy server."""

    server: Toxiproxy
    name: str
    listen: str
    """Address at which it accepts connections, HOST:PORT."""
    upstream: str
    """Address to which it forwards them, HOST:PORT."""

    def enable(self) -> None:
        self.server.call("post", f"/proxies/{self.name}", json={"enabled": True})

    def disable(self) -> None:
        """Close all connections and refuse new ones."""
        self.server.call("post", f"/proxies/{self.name}", json={"enabled": False})

    def destroy(self) -> None:
        self.server.call("delete", f"/proxies/{self.name}")

    def add_toxic(self, name: str, kind: str, stream: str, attributes: Mapping[str, int]) -> None:
        """Toxiproxy draws a toxic's ``toxicity`` when a connection starts and not for each message, so it stays 1."""
        toxic = {"name": name, "type": kind, "stream": stream, "attributes": dict(attributes)}
        self.server.call("post", f"/proxies/{self.name}/toxics", json=toxic)

    def remove_toxic(self, name: str) -> None:
        """Remove a toxic. One that is gone already is no error."""
        try:
            self.server.call("delete", f"/proxies/{self.name}/toxics/{name}")
        except ToxiproxyError as failure:
            if failure.status != NOT_FOUND:
                raise
