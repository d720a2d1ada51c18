"""The file in a local cluster's data folder that holds the cluster's ID and size. A second start reads it, so that its
nodes form the same quorum."""

import json
import os
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
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(identity)) + "\n")
        os.replace(temporary, path)
    except OSError as failure:
        raise SetupError(
            f"Cannot write to {data} ({failure.strerror}): give --data a directory of your own."
        ) from failure
    return identity


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
