"""Lays out the nodes of a target whose processes we start: their ports, folders, files and commands."""

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import reference_broker
from bench.ports import free_ports
from bench.targets.loader import provider_of
from bench.targets.model import Chosen, NodeFile, TargetError, filled, filled_list

ROOT = Path(reference_broker.__file__).resolve().parents[1]
"""The clone, or the site-packages of an installed wheel."""
HOST = "127.0.0.1"
MAX_REPLICAS = 3
PREPARE_LIMIT_S = 120.0
OURS = "crucible."
"""Settings that begin so are those of the reference broker, and no target gets them."""
FIRST_LEVELS = {"crucible.bootstrap.transaction.version": "transaction.version"}
"""Settings for the level at which a feature begins, by the names that other brokers have for it."""

Via = Mapping[tuple[int, int], str]
"""For (node, other node) where the first finds the second, if it is not at its real address. For links by ``peers``
that is HOST:PORT, and for links by ``hosts`` it is the address without a port."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Folder, ports and addresses of one node."""

    number: int
    port: int  # port of clients on 127.0.0.1
    command: Sequence[str]
    prepare: Sequence[str]
    environment: Mapping[str, str]
    ready: str
    files: Mapping[Path, str]
    data: Path
    log: Path

    def make(self) -> None:
        """Write its files, and prepare it. Raise TargetError."""
        self.write()
        if not self.prepare:
            return
        try:
            done = subprocess.run(
                self.prepare,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PREPARE_LIMIT_S,
                check=False,
            )
        except OSError as error:
            raise TargetError(f"{self.prepare[0]} cannot be run: {error.strerror}.") from error
        except subprocess.TimeoutExpired as expired:
            raise TargetError(f"{name_of(self.number)} was not prepared within {PREPARE_LIMIT_S:g} s.") from expired
        if done.returncode != 0:
            raise TargetError(
                f"{name_of(self.number)} could not be prepared: {last_lines(done.stdout + done.stderr, 1)}"
            )

    def write(self) -> None:
        """Write its files alone."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        for path, text in self.files.items():
            path.write_text(text, encoding="utf-8")


@dataclass(slots=True)
class ClusterLayout:
    """The nodes of one cluster."""

    chosen: Chosen
    folder: Path  # contains the folders of all nodes
    voters: int = 0  # number of voters, which are the first nodes
    total: int = 0
    words: Mapping[str, str] = field(default_factory=dict)  # replace the file's own placeholders
    settings: Callable[[int], Mapping[str, str]] = lambda _: {}
    """Each node's settings by Kafka's names, without those that only the reference broker knows (``OURS``)."""
    features: Mapping[str, str] = field(default_factory=dict)
    """The levels at which a new cluster begins, by Kafka's names."""
    advertised: Sequence[str] = ()  # the HOST:PORT at which clients reach each node, if that is not the node's own
    ports: list[dict[str, int]] = field(init=False)  # each node's ports by name; ``client`` is that of clients
    _shared: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.total = self.total or self.chosen.nodes
        self.voters = self.voters or self.total
        names = ("client", *self.node.ports)
        self.ports = [dict(zip(names, free_ports(len(names)), strict=True)) for _ in range(self.total)]

    @property
    def node(self) -> NodeFile:
        assert self.chosen.file.node is not None, f"{self.chosen.text} starts no processes"
        return self.chosen.file.node

    def lay_out(self, via: Via | None = None) -> list[NodeLayout]:
        """Return all nodes, or the one process that is all of them. Raise TargetError if something cannot be had."""
        provider = provider_of(self.chosen.file)
        provided = {} if provider is None else provider.provide(self.chosen.version)
        self._shared = {**provided, "cluster_id": new_cluster_id()}
        count = 1 if self.node.one_process else self.total
        return [self.laid(number, via or {}) for number in range(count)]

    def laid(self, number: int, via: Via) -> NodeLayout:
        """Return one node of those that ``lay_out`` returned, with the settings that it has now."""
        folder = self.folder / name_of(number)
        settings = self.settings(number)
        words = {**self._shared, **self._words(number, folder, via), "settings": _lines(settings)}
        words["features"] = _lines(self.features)
        own = {**dict(self.node.words), **(dict(self.node.observer) if number >= self.voters else {}), **self.words}
        words |= {key: filled(text, words) for key, text in own.items()}
        several = {
            "settings": _pairs(self.node.setting, settings),
            "features": _pairs(self.node.feature, self.features),
        }
        files = {folder / name: filled(text, words) for name, text in self.node.files}
        if self.node.links == "hosts":
            files[folder / "hosts"] = self._hosts(number, via)
        return NodeLayout(
            number=number,
            port=self.ports[number]["client"],
            command=filled_list(self.node.command, words, several),
            prepare=filled_list(self.node.prepare, words, several),
            environment={key: filled(value, words) for key, value in self.node.environment},
            ready=filled(self.node.ready, words),
            files=files,
            data=folder / "data",
            log=folder / "log.txt",
        )

    def _words(self, number: int, folder: Path, via: Via) -> dict[str, str]:
        return {
            **self._address(number),
            "advertised": self.advertised[number] if self.advertised else f"{HOST}:{self.ports[number]['client']}",
            "version": self.chosen.version,
            "ports": ",".join(str(ports["client"]) for ports in self.ports),
            "nodes": str(self.total),
            "replicas": str(min(self.total, MAX_REPLICAS)),
            "folder": str(folder),
            "data": str(folder / "data"),
            "hosts": str(folder / "hosts"),
            "root": str(ROOT),
            "python": sys.executable,
            "voters": ",".join(self._peer(number, other, via) for other in range(self.voters)),
            "peers": ",".join(self._peer(number, other, via) for other in range(self.total)),
        }

    def _address(self, number: int) -> dict[str, str]:
        ports = self.ports[number]
        extra = {f"{name}_port": str(port) for name, port in ports.items() if name != "client"}
        port = ports["client"]
        own = {"id": str(number), "name": name_of(number), "host": HOST, "port": str(port)}
        return {**own, "address": f"{HOST}:{port}", **extra}

    def _peer(self, number: int, other: int, via: Via) -> str:
        """Return what the node gets of another one, or of itself."""
        words = self._address(other)
        if self.node.links == "peers" and (number, other) in via:
            host, _, port = via[number, other].rpartition(":")
            words |= {"host": host, "port": port, "address": via[number, other]}
        return filled(self.node.peer, words)

    def _hosts(self, number: int, via: Via) -> str:
        """Return the node's hosts file. It is all that the node can look up, so it has the machine's own names,
        too."""
        others = [f"{via.get((number, other), HOST)} {name_of(other)}\n" for other in range(self.total)]
        return "".join([f"{HOST} localhost\n", f"{HOST} {socket.gethostname()}\n", *others])


def _pairs(words: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    return [filled(word, {"key": key, "value": value}) for key, value in settings.items() for word in words]


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def last_lines(text: str, count: int) -> str:
    """Return the last lines that do not continue others, as those of a Java exception do by their indentation."""
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    return " / ".join(line.strip() for line in lines[-count:]) or "it said nothing"


def name_of(number: int) -> str:
    return f"node-{number}"


def new_cluster_id() -> str:
    """Make a cluster ID that begins with a letter. Kafka's own tool takes a leading dash, which base64 may have, for
    an option."""
    return "c" + base64.urlsafe_b64encode(uuid4().bytes).decode()[1:22]
