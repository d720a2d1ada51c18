"""The declarations of all fault kinds: each is declared once, with what scenario files, both worlds and the
documentation need of it.

How a kind is injected is declared in its world: at a time in ``BEGIN`` of the files of ``chaos/live/faults`` (real
processes), and in ``BEGIN`` of ``chaos/sim/timed_faults.py`` or ``IN_STEPS`` of ``chaos/sim/fault_scheduler.py`` (the
simulator), at a state in ``chaos/interceptor`` for both. Reports stand alone, so
``reports/page/faults.py`` has its words. ``chaos/tests/test_fault_kinds.py`` names each kind that one of them lacks.
"""

from dataclasses import dataclass
from typing import Final, Literal

STATES = ("request", "response", "peer_response", "disk", "disk_write", "store", "store_result", "note", "decision")
"""States at which a fault fires (``on``).

``request`` and ``response`` are at the node that responds, ``peer_response`` at the node that sent the request.
``disk`` is before an operation of the node's disk, and ``disk_write`` at a byte of a write. ``note`` is when the node
reports what happened inside it. ``store`` is before a call of the object store leaves the node, and ``store_result``
is when its result reaches the node. ``decision`` is when the node reaches an outcome of a decision point
(``scenarios.decision_points``), in the middle of its work: only the simulator sees that.
"""
SIMULATED_STATES = ("decision",)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. All but ``name`` and ``does`` have a default for kinds without the property."""

    name: str
    does: str
    """For authors of scenarios: what it does, with its keys in backticks."""
    timed: bool = False
    """Can begin at a time (at_s)."""
    on: tuple[str, ...] = ()
    """The STATES at which it can fire."""
    on_links: bool = False
    """At a state it can also be of a link between two nodes, where a proxy changes the frames."""

    # What scenario files may say
    keys: tuple[str, ...] = ()
    """Keys of [[fault]] that mean nothing for kinds that do not list them."""
    match: tuple[str, ...] = ()
    """Keys of match for a fault at a time; at a state they follow from ``on``."""
    needs: str = ""
    """What the world must have (vocabulary.NEEDS); empty: interceptor at a state, signals at a time."""
    with_proxy: bool = False
    """Needs the links through Toxiproxy as well."""
    in_swarm: bool = False
    """[swarm] can draw it; how is in ``chaos/sim/swarm.py``."""

    # What both worlds go by
    hits_link: bool = False
    """Its target is a link, not a node."""
    ends_node: bool = False
    """Ends the node, which stays away for restart_after_s instead of duration_s."""
    in_steps: bool = False
    """With real processes it has no duration: its end is polled until it is done."""
    cuts: Literal["", "others", "controller", "all"] = ""
    """Which links of its node go silent, both ways."""
    shown_at_end: bool = False
    """Fired only if there was something to damage or delete when the node had stopped."""
    changes_files: bool = False
    """Needs the node's data directory."""
    from_recorded: bool = False
    """Made of requests that nodes sent to each other, which the run must record."""
    flips_frame_bit: bool = False
    """Damages one bit of a frame."""

    # Where it cannot be injected
    only_simulated: bool = False
    commands: tuple[str, ...] = ()
    """The shell commands that do the same to a node of an external target."""
    inside_only: str = ""
    """Why a frame proxy cannot inject it at a state."""

    @property
    def is_external(self) -> bool:
        """Whether a broker that is not ours can be the target at a time."""
        return bool(self.commands or self.cuts) or self.changes_files or self.hits_link


_KINDS = (
    # Nodes
    FaultKind(
        "node_killed",
        "SIGKILL. What the node appended stays.",
        timed=True,
        on=STATES,
        in_swarm=True,
        ends_node=True,
        commands=("kill", "start"),
    ),
    FaultKind(
        "node_paused",
        "SIGSTOP, and SIGCONT after `duration_s`. Connections stay open.",
        timed=True,
        on=STATES,
        in_swarm=True,
        commands=("pause", "resume"),
    ),
    FaultKind(
        "node_powered_off",
        "The node ends, and unsynced bytes are lost or torn. Only in the simulator: the page cache of a machine "
        "survives the death of any process.",
        timed=True,
        on=STATES,
        in_swarm=True,
        ends_node=True,
        only_simulated=True,
        inside_only="there is no machine to switch off",
    ),
    FaultKind(
        "host_lost",
        "Kills a node while its links, those of clients too, swallow everything and close nothing, as if its machine "
        "had vanished: other nodes and clients notice only when their own timeouts expire. After `restart_after_s` "
        "(above 0) the links are restored and the node starts again. What it had appended stays. At a state the node "
        "stops there until it is killed.",
        timed=True,
        on=STATES,
        with_proxy=True,
        ends_node=True,
        cuts="all",
        commands=("kill", "start"),
        inside_only="a proxy of frames cannot silence a node's links; give it at a time (at_s)",
    ),
    FaultKind(
        "node_terminated",
        "SIGTERM: the node shuts down cleanly.",
        timed=True,
        in_swarm=True,
        ends_node=True,
        commands=("stop", "start"),
    ),
    FaultKind(
        "node_isolated",
        "Cuts all links of a node to other nodes both ways; with `clients = true` also those of clients.",
        timed=True,
        keys=("clients",),
        needs="proxy",
        in_swarm=True,
        cuts="others",
    ),
    FaultKind(
        "node_cut_from_controller",
        "Cuts only the links between a node and the current active controller, both ways. Clients and all other "
        "nodes still reach the node.",
        timed=True,
        needs="proxy",
        in_swarm=True,
        cuts="controller",
    ),
    FaultKind(
        "rolling_bounce",
        "Ends each node in turn by SIGTERM, and starts it `restart_after_s` later with `config` over its settings. "
        "The next node follows `between_s` after this one is ready, once all nodes are ready. The fault must reach "
        "each node.",
        timed=True,
        keys=("config",),
        in_steps=True,
        commands=("stop", "start"),
    ),
    FaultKind(
        "feature_finalized",
        "Requests `level` of `feature` until the controller finalizes it. Level 0 disables it. Such a run is judged "
        "only by the guarantees that the scenario lists.",
        timed=True,
        in_steps=True,
    ),
    FaultKind(
        "requests_replayed",
        "Sends the node one old request of each kind that other nodes sent to it in this run: of the quorum, of "
        "in-sync replicas, of registrations.",
        timed=True,
        needs="interceptor",
        in_swarm=True,
        in_steps=True,
        from_recorded=True,
    ),
    FaultKind(
        "requests_forged",
        "Sends the node one request of each kind that other nodes sent to it in this run, with a wrong cluster ID, "
        "voter ID, broker epoch, an epoch beyond the limit, or a wrong position in a snapshot.",
        timed=True,
        needs="interceptor",
        in_swarm=True,
        in_steps=True,
        from_recorded=True,
    ),
    FaultKind(
        "clock_stepped",
        "Moves the node's wall clock by `step_ms`.",
        on=("request", "response", "disk_write"),
        needs="clock",
        in_swarm=True,
        inside_only="there is no clock to step",
    ),
    # Disks
    FaultKind(
        "directory_missing",
        "Kills a node, which restarts with an empty directory after `restart_after_s`, as if its disk were not "
        "mounted. When the fault ends the node is killed again, and restarts with the old directory. It is only for "
        "observers: a voter must not lose its metadata log.",
        timed=True,
        in_steps=True,
        changes_files=True,
    ),
    FaultKind(
        "disk_slowed",
        "Each sync takes `delay_ms` longer, with `names_only` only the syncs of folders.",
        timed=True,
        keys=("names_only",),
        needs="disk",
        in_swarm=True,
    ),
    FaultKind(
        "disk_full",
        "All appends and writes fail for lack of space.",
        timed=True,
        needs="disk",
        in_swarm=True,
    ),
    FaultKind(
        "disk_bit_flipped",
        "At a time: ends a node by SIGTERM, flips one bit of a record batch (where recovery reads) or of a topic's "
        "ID in `partition.metadata`, and starts it again after `restart_after_s`. If `match` names a `path`, one bit "
        "of each such file is flipped. At a `disk_write`: flips one bit of the write, in byte `cut_bytes`, without "
        "an error.",
        timed=True,
        on=("disk_write",),
        match=("path",),
        needs="disk",
        in_swarm=True,
        ends_node=True,
        shown_at_end=True,
    ),
    FaultKind(
        "files_missing",
        "Ends a node by SIGTERM, deletes each file that `match` names as `path`, and starts it again after "
        "`restart_after_s`.",
        timed=True,
        match=("path",),
        needs="disk",
        ends_node=True,
        shown_at_end=True,
        changes_files=True,
    ),
    FaultKind(
        "disk_error",
        "An operation of the disk fails with `error` (`EIO`, which is the default, `ENOSPC`, `EROFS`, `EMFILE` or "
        "`ENFILE`). `operation` is `open` (any that may have to open a file), `stat`, `read`, `write`, `truncate`, "
        "`rename`, `delete`, `list` or `sync`; without it any operation fails. A sync fails `delay_ms` later. At a "
        "`disk_write` the first `cut_bytes` are written before the error, and with `undo_fails` they stay. A node "
        "that ends itself is restarted.",
        on=("disk", "disk_write"),
        needs="disk",
        in_swarm=True,
    ),
    FaultKind(
        "disk_write_failed",
        "The first `cut_bytes` of a write are written, and then no space is left.",
        on=("disk_write",),
        needs="disk",
    ),
    # Links
    FaultKind(
        "link_cut",
        "Bytes vanish, and connections stay open.",
        timed=True,
        needs="proxy",
        in_swarm=True,
        hits_link=True,
    ),
    FaultKind(
        "link_delayed",
        "Bytes arrive later, by `delay_ms` plus or minus `jitter_ms`.",
        timed=True,
        needs="proxy",
        in_swarm=True,
        hits_link=True,
    ),
    FaultKind(
        "link_reset",
        "Each connection is reset (RST).",
        timed=True,
        needs="proxy",
        in_swarm=True,
        hits_link=True,
    ),
    FaultKind(
        "link_truncated",
        "Each connection passes `cut_bytes` more bytes and is closed, as a rule inside a frame.",
        timed=True,
        needs="proxy",
        hits_link=True,
    ),
    FaultKind(
        "link_sliced",
        "Frames arrive in small pieces, with pauses between them.",
        timed=True,
        needs="proxy",
        hits_link=True,
    ),
    FaultKind(
        "link_slowed",
        "Each connection passes at most `bytes_per_s`.",
        timed=True,
        needs="proxy",
        in_swarm=True,
        hits_link=True,
    ),
    FaultKind(
        "link_down",
        "Connections are closed, and new ones are refused.",
        timed=True,
        needs="proxy",
        in_swarm=True,
        hits_link=True,
    ),
    # Requests
    FaultKind(
        "request_dropped",
        "The node does not get the request, and its connection is closed.",
        on=("request",),
        on_links=True,
    ),
    FaultKind(
        "request_duplicated",
        "The request arrives twice, the second time on a connection of its own, `delay_ms` later.",
        on=("request",),
        on_links=True,
    ),
    FaultKind(
        "request_delayed",
        "The request arrives `delay_ms` later.",
        on=("request",),
        on_links=True,
    ),
    FaultKind(
        "request_damaged",
        "Flips one bit of the frame. `part` says where: `checksummed` (the bytes under the CRC of a record batch), "
        "`length` (of the frame or of a batch), `anywhere`.",
        on=("request",),
        keys=("part",),
        in_swarm=True,
        flips_frame_bit=True,
        inside_only="what a node makes of damaged bytes is known only inside the node",
    ),
    # Responses
    FaultKind(
        "response_dropped",
        "The response is lost, and its connection is closed.",
        on=("response",),
        on_links=True,
    ),
    FaultKind(
        "response_lost_by_proxy",
        "Toxiproxy loses a response to a client: the node holds it at this state, a toxic is added to the clients' "
        "link, and then the node sends it. The toxic swallows it and closes its connection, and is removed. Other "
        "responses of the node to clients wait meanwhile.",
        on=("response",),
        with_proxy=True,
    ),
    FaultKind(
        "response_delayed",
        "The response is sent `delay_ms` later. At a `peer_response` all that follow on its channel wait, too.",
        on=("response", "peer_response"),
        on_links=True,
    ),
    FaultKind(
        "response_duplicated",
        "The whole response is sent twice, which no broker does: a client must close the connection, or ignore the "
        "second. At a `peer_response` the second is the response to the next request of the same API.",
        on=("response", "peer_response"),
        on_links=True,
    ),
    FaultKind(
        "response_damaged",
        "Flips one bit of the frame, in its `part` as for `request_damaged`.",
        on=("response",),
        on_links=True,
        keys=("part",),
        in_swarm=True,
        flips_frame_bit=True,
    ),
    FaultKind(
        "response_truncated",
        "Sends the first `cut_bytes` of the response and closes the connection.",
        on=("response",),
        on_links=True,
    ),
    FaultKind(
        "response_error",
        "Replaces the response by one with the error `code` (Kafka's number, such as 6 for NOT_LEADER_OR_FOLLOWER). "
        "`code_in` is `response` (the top level of the response), `items` (all its partitions and the like), or "
        "`either`, the first of the two that the response has. The node has handled the request, although the "
        "response denies it, so the simulator judges only the guarantees that such a scenario lists.",
        on=("response",),
        on_links=True,
        keys=("code_in",),
    ),
    # The object store
    FaultKind(
        "store_refused",
        "A call fails with `failure` (`unavailable` or `refused`) before it reaches the store.",
        on=("store",),
        keys=("failure",),
    ),
    FaultKind(
        "store_slowed",
        "The response comes `delay_ms` later.",
        on=("store_result",),
    ),
    FaultKind(
        "store_result_lost",
        "The store did it, but the node gets `unavailable`, after `delay_ms`.",
        on=("store_result",),
    ),
    FaultKind(
        "store_listed_late",
        "A list lacks the objects that this node put less than `delay_ms` ago.",
        on=("store_result",),
    ),
)

FAULT_KINDS: Final = {kind.name: kind for kind in _KINDS}


TIMED_KINDS: Final = tuple(kind.name for kind in _KINDS if kind.timed)
KINDS_AT: Final = {state: tuple(kind.name for kind in _KINDS if state in kind.on) for state in STATES}
"""The kinds that a fault at each state can be of."""
KINDS_ON_LINKS: Final = tuple(kind.name for kind in _KINDS if kind.on_links)
KINDS_OF_PROCESSES: Final = tuple(kind.name for kind in _KINDS if kind.commands)
SWARM_KINDS: Final = tuple(kind.name for kind in _KINDS if kind.in_swarm)


def with_key(key: str) -> tuple[str, ...]:
    """Return the kinds that have this key, empty if all have it."""
    return tuple(kind.name for kind in _KINDS if key in kind.keys)


KEYS_OF_FEW: Final = tuple(dict.fromkeys(key for kind in _KINDS for key in kind.keys))
"""The keys of ``[[fault]]`` that only some kinds have."""
