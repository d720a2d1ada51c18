"""The node's files ``meta.properties`` and ``quorum-state``.

Both have Kafka's formats. A file is replaced by writing ``<name>.tmp``, syncing it, renaming it, and syncing the new
name. The syncs complete in later events.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Done, Ports
from reference_broker.quorum.values import MAX_EPOCH

META_PROPERTIES = "meta.properties"
METADATA_DIRECTORY = "__cluster_metadata-0"
QUORUM_STATE = f"{METADATA_DIRECTORY}/quorum-state"
QUORUM_STATE_VERSION = 0
"""QuorumStateData of a cluster whose voters are configured. In version 1 they are part of the log (KIP-853)."""
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
"""The mark of a clean end, which ``core.clean_shutdown`` writes."""
TEMPORARY_SUFFIX = ".tmp"


class StartRefused(Exception):  # noqa: N818 - says what happens, not only that something is wrong
    """The data directory is damaged or belongs to another node. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of meta.properties. Both UUIDs are base64 text, as in Kafka."""

    cluster_id: str
    node_id: int
    directory_id: str


@dataclass(frozen=True, slots=True)
class QuorumStateData:
    """The content of quorum-state. An ID of -1 means none."""

    leader_id: int
    leader_epoch: int
    voted_id: int
    voters: tuple[int, ...]
    """Node IDs."""


def read_identity(disk: Disk, node_id: int) -> Identity | None:
    """Return None for an empty directory. Raise StartRefused for another node's directory or an unreadable file."""
    if not disk.exists(META_PROPERTIES):
        return None
    lines = disk.read(META_PROPERTIES, 0, disk.size(META_PROPERTIES)).decode(errors="replace").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    values = {key.strip(): value.strip() for key, _, value in pairs}
    if values.get("version") != "1" or not {"cluster.id", "node.id", "directory.id"} <= values.keys():
        raise StartRefused(f"{META_PROPERTIES} is damaged or of another version: restore it or use an empty directory.")
    if values["node.id"] != str(node_id):
        raise StartRefused(
            f"The data directory belongs to node {values['node.id']}, not {node_id}: give that node ID, "
            "or another directory."
        )
    return Identity(values["cluster.id"], node_id, values["directory.id"])


def write_identity(disk: Disk, identity: Identity) -> str:
    """Write the temporary file and return its path, for ``put_in_place``."""
    text = (
        f"#\ncluster.id={identity.cluster_id}\ndirectory.id={identity.directory_id}\n"
        f"node.id={identity.node_id}\nversion=1\n"
    )
    disk.write(META_PROPERTIES + TEMPORARY_SUFFIX, text.encode())
    return META_PROPERTIES + TEMPORARY_SUFFIX


class IdentityFile:
    """The file meta.properties of this node, which is written once, when a record is committed here. From then on a
    missing log means that data was lost, not that the node is new."""

    def __init__(self, disk: Disk, ports: Ports, identity: Identity, is_durable: bool) -> None:
        self._disk = disk
        self._ports = ports
        self.identity = identity
        self.is_durable = is_durable
        """The file is on the disk, and its name is synced."""
        self._is_being_written = False

    def write_once(self, sync_log: Callable[[Done], None], done: Done) -> None:
        """Write the file unless it exists or is being written, and call ``done`` when it is durable. ``sync_log``
        syncs the log first."""
        if self.is_durable or self._is_being_written:
            return
        self._is_being_written = True

        def synced() -> None:
            self.is_durable = True
            done()

        sync_log(lambda: put_in_place(self._disk, self._ports, write_identity(self._disk, self.identity), synced))


def read_quorum_state(disk: Disk) -> QuorumStateData | None:
    """Return None without the file. Raise StartRefused for one that is unreadable or of another version."""
    if not disk.exists(QUORUM_STATE):
        return None
    try:
        fields = json.loads(disk.read(QUORUM_STATE, 0, disk.size(QUORUM_STATE)))
        if fields["data_version"] != QUORUM_STATE_VERSION:
            raise StartRefused(
                f"{QUORUM_STATE} has version {fields['data_version']}, and only {QUORUM_STATE_VERSION} is known: use a "
                "directory of a cluster whose voters are configured."
            )
        voters = tuple(int(voter["voterId"]) for voter in fields["currentVoters"])
        state = QuorumStateData(int(fields["leaderId"]), int(fields["leaderEpoch"]), int(fields["votedId"]), voters)
    except (ValueError, KeyError, TypeError) as error:
        raise StartRefused(f"{QUORUM_STATE} is damaged ({error}): restore it from another copy.") from error
    if not 0 <= state.leader_epoch <= MAX_EPOCH:
        raise StartRefused(
            f"{QUORUM_STATE} has epoch {state.leader_epoch}, which no node can have: restore it from another copy."
        )
    return state


def write_quorum_state(disk: Disk, state: QuorumStateData) -> str:
    """Write the temporary file (QuorumStateData version 0) and return its path, for ``put_in_place``."""
    fields = {
        "clusterId": "",
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in state.voters],
        "data_version": QUORUM_STATE_VERSION,
    }
    disk.write(QUORUM_STATE + TEMPORARY_SUFFIX, json.dumps(fields, separators=(",", ":")).encode())
    return QUORUM_STATE + TEMPORARY_SUFFIX


def put_in_place(disk: Disk, ports: Ports, temporary: str, done: Callable[[], None]) -> None:
    """Sync the temporary file, rename it over the old one, and call ``done`` when the name is synced, too."""
    path = temporary.removesuffix(TEMPORARY_SUFFIX)

    def synced() -> None:
        disk.rename(temporary, path)
        ports.sync((path,), done)

    ports.sync((temporary,), synced)
