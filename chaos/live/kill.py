"""SIGKILL for the node that has a role: ``crucible cluster --data DIR kill ...``.

The data folder lists the running nodes (``cluster_command``). These report the node that has the role, and that node is
killed.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.probe.conversation import body
from bench.program import PROGRAM
from chaos.live.cluster_command import Running, running
from chaos.live.errors import SetupError
from chaos.live.processes import require_psutil
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name

if TYPE_CHECKING:
    import psutil

METADATA_VERSION, QUORUM_VERSION, COORDINATOR_VERSION = 12, 1, 4
QUORUM_TOPIC: Final = "__cluster_metadata"
CALL_LIMIT_US = 5_000_000
CLIENT_ID = "crucible-kill"
END_LIMIT_S = 10.0
NOBODY = -1
GROUP, TRANSACTION = 0, 1
"""The key types of FindCoordinator."""


def kill_leader(data: Path, name: str) -> str:
    """Kill the leader of a partition, TOPIC/PARTITION. Return a JSON line. Raise SetupError."""
    topic, _, index = name.rpartition("/")
    if not topic or not (index.isascii() and index.isdigit()):
        raise SetupError(f"{name!r} is no partition: give TOPIC/PARTITION, such as hot/0.")

    def leader(connection: Connection) -> int:
        wanted = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        (found,) = _call(connection, ApiKey.METADATA, METADATA_VERSION, wanted).topics
        if found.error_code:
            raise SetupError(f"The cluster has no topic {topic} ({error_name(found.error_code)}).")
        for partition in found.partitions:
            if partition.partition_index == int(index):
                return int(partition.leader_id)
        raise SetupError(f"Topic {topic} has {len(found.partitions)} partitions, and none with number {index}.")

    return _kill(data, f"leader of {name}", leader)


def kill_controller(data: Path) -> str:
    """Kill the active controller. Return a JSON line. Raise SetupError."""

    def controller(connection: Connection) -> int:
        wanted = {"topics": [{"topic_name": QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]}
        for topic in _call(connection, ApiKey.DESCRIBE_QUORUM, QUORUM_VERSION, wanted).topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    return int(partition.leader_id)
        return NOBODY

    return _kill(data, "active controller", controller)


def kill_coordinator(data: Path, key: str, kind: int = GROUP) -> str:
    """Kill the coordinator of a group or of a transactional ID. Return a JSON line. Raise SetupError."""

    def coordinator(connection: Connection) -> int:
        wanted = {"key_type": kind, "coordinator_keys": [key]}
        (found,) = _call(connection, ApiKey.FIND_COORDINATOR, COORDINATOR_VERSION, wanted).coordinators
        return NOBODY if found.error_code != ErrorCode.none else int(found.node_id)

    what = "group" if kind == GROUP else "transactional ID"
    return _kill(data, f"coordinator of {what} {key}", coordinator)


def _kill(data: Path, role: str, find: Callable[[Connection], int]) -> str:
    require_psutil("kill")
    import psutil

    nodes = running(data)
    processes = dict(_processes(data, nodes))
    if not processes:
        raise SetupError(f"No node of {data} runs: start some with {PROGRAM} cluster --data {data}.")
    node = _found(nodes, processes, find)
    if node is None:
        raise SetupError(f"No node of {data} responds: wait until the cluster is ready.")
    if node == NOBODY:
        raise SetupError(f"There is no {role} now: try again.")
    if node not in processes:
        raise SetupError(f"Node {node}, the {role}, does not run any more: try again.")
    process = processes[node]
    os.kill(process.pid, signal.SIGKILL)
    with suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
        process.wait(END_LIMIT_S)
    return json.dumps({"killed": node, "pid": process.pid, "role": role})


def _found(nodes: Running, processes: "dict[int, psutil.Process]", find: Callable[[Connection], int]) -> int | None:
    """Return the node that has the role, NOBODY if no node knows one, and None if no node responds."""
    found = None
    for node in processes:
        with suppress(TransportError):
            with Connection.open(*nodes.address(node), CALL_LIMIT_US, CLIENT_ID) as connection:
                found = find(connection)
            if found != NOBODY:
                return found
    return found


def _call(connection: Connection, api_key: ApiKey, version: int, wanted: Mapping[str, Any]) -> Any:
    return connection.call(api_key, version, body(api_key, wanted))


def _processes(data: Path, nodes: Running) -> "Iterator[tuple[int, psutil.Process]]":
    """Yield the nodes that still run. An ID may have been given to another process since, which must not be killed."""
    import psutil

    for node, pid in nodes.pids.items():
        with suppress(psutil.Error):
            process, folder = psutil.Process(pid), (data / f"node-{node}").resolve()
            if any((Path(process.cwd()) / word).resolve() == folder for word in process.cmdline()):
                yield node, process
