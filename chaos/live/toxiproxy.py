"""Toxiproxy's HTTP interface, typed: a thin layer over toxiproxy-python that fills its gaps.

The library keeps one server's address in a class, sets no timeouts, cannot change a proxy or a toxic, hides 5xx
answers and returns values that go stale. Here each ``Toxiproxy`` has its own address and timeout, values are
snapshots that say so, changes are made in place (deleting and creating again races with connections, Toxiproxy
#148), and every failure is a ``ToxiproxyError``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import requests
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

Stream = Literal["upstream", "downstream"]
"""``upstream``: from the client to the server (requests); ``downstream``: the answers."""
TIMEOUT_S = 5.0


class ToxiproxyError(Exception):
    """Toxiproxy refused, failed or did not answer in time. ``status``: of HTTP, 0 if there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Toxic:
    name: str
    type: str
    stream: Stream
    toxicity: float
    attributes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy as the server described it when it was asked. Addresses are HOST:PORT."""

    name: str
    listen: str
    upstream: str
    enabled: bool
    toxics: tuple[Toxic, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a proxy since its start: what it took in and what it passed on, in each direction."""

    requests_received_bytes: int = 0
    requests_sent_bytes: int = 0
    answers_received_bytes: int = 0
    answers_sent_bytes: int = 0


class Toxiproxy:
    """One server."""

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.address = f"{host}:{port}"
        # The library's calls are class methods that read the class's own host and port.
        self._http: Any = type("Consumer", (APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        found = self._call("get", "/version")
        return str(found.get("version", "")) if isinstance(found, dict) else str(found)

    def proxies(self) -> dict[str, Proxy]:
        return {name: _proxy(values) for name, values in self._call("get", "/proxies").items()}

    def proxy(self, name: str) -> Proxy:
        return _proxy(self._call("get", f"/proxies/{name}"))

    def create(self, name: str, upstream: str, listen: str = "127.0.0.1:0", enabled: bool = True) -> Proxy:
        """``listen`` with port 0: the answer names the port that it got."""
        body = {"name": name, "upstream": upstream, "listen": listen, "enabled": enabled}
        return _proxy(self._call("post", "/proxies", json=body))

    def update(self, name: str, *, upstream: str | None = None, enabled: bool | None = None) -> Proxy:
        """Changes it in place. Disabling closes all its connections and refuses new ones."""
        wanted = {"upstream": upstream, "enabled": enabled}
        body = {key: value for key, value in wanted.items() if value is not None}
        return _proxy(self._call("post", f"/proxies/{name}", json=body))

    def delete(self, name: str) -> None:
        self._call("delete", f"/proxies/{name}")

    def add_toxic(
        self, proxy: str, name: str, kind: str, stream: Stream, attributes: Mapping[str, int], toxicity: float = 1.0
    ) -> Toxic:
        """``toxicity`` is drawn when a connection starts, not for each message: scenarios leave it at 1."""
        body = {
            "name": name,
            "type": kind,
            "stream": stream,
            "toxicity": toxicity,
            "attributes": dict(attributes),
        }
        return _toxic(self._call("post", f"/proxies/{proxy}/toxics", json=body))

    def remove_toxic(self, proxy: str, name: str) -> None:
        """A toxic that is gone already is no error."""
        try:
            self._call("delete", f"/proxies/{proxy}/toxics/{name}")
        except ToxiproxyError as failure:
            if failure.status != 404:
                raise

    def reset(self) -> None:
        """Enables all proxies and removes all toxics."""
        self._call("post", "/reset")

    def traffic(self, proxy: str) -> Traffic:
        """Needs a server started with ``-proxy-metrics``."""
        text = self._call("get", "/metrics")
        counts = {}
        for line in str(text).splitlines():
            if line.startswith("toxiproxy_proxy_") and f'proxy="{proxy}"' in line:
                labelled, _, value = line.rpartition(" ")
                way = "requests" if 'direction="upstream"' in labelled else "answers"
                kind = "received" if labelled.startswith("toxiproxy_proxy_received") else "sent"
                counts[f"{way}_{kind}_bytes"] = int(float(value))
        return Traffic(**counts)

    def _call(self, verb: str, path: str, **kwargs: object) -> Any:
        try:
            answer = getattr(self._http, verb)(path, timeout=self._timeout_s, **kwargs)
        except ProxyExists as failure:
            raise ToxiproxyError(_said(failure), 409) from failure
        except NotFound as failure:
            raise ToxiproxyError(_said(failure), 404) from failure
        except InvalidToxic as failure:
            raise ToxiproxyError(_said(failure), 400) from failure
        except requests.RequestException as failure:
            raise ToxiproxyError(f"Toxiproxy at {self.address} did not answer {verb} {path}: {failure}") from failure
        if answer.status_code >= 400:
            raise ToxiproxyError(f"Toxiproxy answered {answer.status_code} to {verb} {path}", answer.status_code)
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.json() if is_json and answer.content else answer.text


def _said(failure: Exception) -> str:
    words = failure.args[0] if failure.args else ""
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)


def _proxy(values: Mapping[str, Any]) -> Proxy:
    toxics = tuple(_toxic(each) for each in values.get("toxics") or ())
    return Proxy(values["name"], values["listen"], values["upstream"], values["enabled"], toxics)


def _toxic(values: Mapping[str, Any]) -> Toxic:
    return Toxic(values["name"], values["type"], values["stream"], values["toxicity"], values["attributes"])
