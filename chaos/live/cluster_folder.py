"""The file in a local cluster's data folder that holds the cluster's ID and size, and the process IDs and addresses of
its nodes. A second start reads it, so that its nodes form the same quorum."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from chaos.live.errors import SetupError
from chaos.live.quorum import new_cluster_id

FILE_NAME = "cluster.json"


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """What the file says. ``cluster_id`` is empty for a single node, which names itself in its meta.properties."""

    cluster_id: str
    nodes: int


def claim(data: Path, nodes: int, wanted_id: str = "") -> ClusterIdentity:
    """Reads the folder's identity, or writes it for a new cluster.

    A new cluster gets the ID ``wanted_id``, or a random one if that is empty. Raises SetupError for a folder of another
    cluster, or one that cannot be written.
    """
    path = data / FILE_NAME
    try:
        data.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return _checked(_read(path), data, nodes, wanted_id)
        if (data / "node-1").exists():
            raise SetupError(
                f"{data} holds a cluster's nodes, but {FILE_NAME} is gone: restore it or give --data another directory."
            )
        if nodes > 1 and (data / "node-0").exists():
            raise SetupError(f"{data} holds a single node's data: give --nodes 1, or --data another directory.")
        identity = ClusterIdentity(wanted_id or (new_cluster_id() if nodes > 1 else ""), nodes)
        _write(path, asdict(identity))
    except OSError as failure:
        raise SetupError(
            f"Cannot write to {data} ({failure.strerror}): give --data a directory of your own."
        ) from failure
    return identity


@dataclass(frozen=True, slots=True)
class Running:
    """The nodes that ran when the file was last written: the process of each, and where clients reach it, HOST:PORT."""

    pids: Mapping[int, int]
    addresses: Sequence[str]

    def address(self, node: int) -> tuple[str, int]:
        host, _, port = self.addresses[node].rpartition(":")
        return host, int(port)


def running(data: Path) -> Running:
    """Read which nodes run. Raises SetupError."""
    path = data / FILE_NAME
    try:
        values = json.loads(path.read_text())
        pids = {int(node): int(pid) for node, pid in values.get("pids", {}).items()}
        addresses = [str(each) for each in values.get("addresses", ())]
    except FileNotFoundError:
        raise SetupError(f"{data} is no cluster's folder: start one with ./crucible cluster --data {data}.") from None
    except OSError as failure:
        raise SetupError(f"Cannot read {path} ({failure.strerror}).") from failure
    except (ValueError, TypeError, AttributeError) as damage:
        raise SetupError(f"{path} is damaged ({damage}).") from damage
    return Running({node: pid for node, pid in pids.items() if node < len(addresses)}, addresses)


def write_running(data: Path, pids: Mapping[int, int], addresses: Sequence[str]) -> None:
    """Write which process each node is, by its ID, and where it listens. A node that does not run has no process."""
    path = data / FILE_NAME
    try:
        _write(path, {**asdict(_read(path)), "pids": pids, "addresses": addresses})
    except OSError as failure:
        raise SetupError(f"Cannot write to {path} ({failure.strerror}).") from failure


def _write(path: Path, values: Mapping[str, object]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(values) + "\n")
    os.replace(temporary, path)


def _read(path: Path) -> ClusterIdentity:
    try:
        values = json.loads(path.read_text())
        return ClusterIdentity(str(values["cluster_id"]), int(values["nodes"]))
    except (ValueError, KeyError, TypeError) as damage:
        raise SetupError(f"{path} is damaged ({damage}): restore it, or give --data another directory.") from damage


def _checked(found: ClusterIdentity, data: Path, nodes: int, wanted_id: str) -> ClusterIdentity:
    if found.nodes != nodes:
        raise SetupError(
            f"{data} holds a cluster of {found.nodes}, and voters cannot be added or removed: give --nodes "
            f"{found.nodes}, or --data another directory."
        )
    if wanted_id and found.cluster_id and wanted_id != found.cluster_id:
        raise SetupError(
            f"{data} holds the cluster {found.cluster_id}, not {wanted_id}: give --data another directory."
        )
    return found
