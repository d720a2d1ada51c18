"""One node of a cluster as a test sees it. It keeps its ports over restarts."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from crucible_kafka.library.arguments import checked
from crucible_kafka.library.carrier import START_LIMIT_S, Carrier, does_not_run
from crucible_kafka.library.errors import CrucibleError, NodeDead
from crucible_kafka.library.folders import ReservedPort
from crucible_kafka.library.observation import error_lines
from crucible_kafka.library.plain_values import Plain

if TYPE_CHECKING:
    from crucible_kafka.library.cluster_life import ClusterLife

LIMIT_S: Final = 10.0
"""The longest wait of a verb unless it is given another limit."""
LAST_ERRORS: Final = 5


class Listeners:
    """The ports of a node: one for clients, and in a cluster of several one for brokers and one for controllers."""

    def __init__(self, several: bool) -> None:
        self.clients = ReservedPort()
        self._of_nodes: Sequence[ReservedPort] = (ReservedPort(), ReservedPort()) if several else ()

    @property
    def controllers(self) -> ReservedPort:
        return self._of_nodes[1]

    def settings(self) -> dict[str, str]:
        brokers, controllers = (node.address for node in self._of_nodes)
        return {
            "listeners": f"PLAINTEXT://{self.clients.address},REPLICATION://{brokers},CONTROLLER://{controllers}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "REPLICATION",
        }

    def release(self) -> None:
        for port in (self.clients, *self._of_nodes):
            port.release()


@checked(besides=("__init__", "command"))
class NodeHandle:
    """One node of a cluster (``Cluster.node``)."""

    def __init__(self, cluster: "ClusterLife", carrier: Carrier, listeners: Listeners, folder: Path) -> None:
        self._cluster = cluster
        self._carrier = carrier
        self._listeners = listeners
        self._folder = folder
        self._is_paused = False
        self._frames: list[dict[str, Any]] = []
        """Of earlier incarnations."""
        self._request_counts: list[tuple[str, str, int]] = []
        self._crashes: list[str] = []
        self._may_end = False
        """Whether a crash is no news: the test has filled the disk, or it is noted already."""
        self._started_at_s = 0.0

    def __repr__(self) -> str:
        return f"<node {self.id} at {self.address}{'' if self.is_running else ', not running'}>"

    @property
    def id(self) -> int:
        """The node's ID, from 0 on."""
        return self._carrier.node_id

    @property
    def address(self) -> str:
        """HOST:PORT for clients. It stays the same when the node restarts."""
        return self._listeners.clients.address

    @property
    def is_running(self) -> bool:
        return self._carrier.is_running

    @property
    def is_serving(self) -> bool:
        """Whether it runs and is not paused."""
        return self.is_running and not self._is_paused

    @property
    def pid(self) -> int:
        """The process that the node runs in: for a node in the test's process, that one."""
        return self._carrier.pid

    def kill(self, fence: bool = True, limit_s: float = LIMIT_S) -> None:
        """End the node at once, as SIGKILL does: nothing is synced, said goodbye to or marked as clean.

        The controller then fences it at once, and other replicas in sync lead its partitions when this returns. With
        ``fence=False`` that takes ``broker.session.timeout.ms``, as it does where a machine is lost.

        >>> kafka.node(1).kill()
        """
        self._cluster.check_usable()
        self._need_running("killed")
        self._keep_frames()
        self._carrier.kill()
        self._is_paused = False
        self._cluster.settle_rules(self.id)
        if fence:
            self._cluster.fence_killed(self.id, limit_s)

    def stop(self) -> None:
        """End the node cleanly: others lead its partitions before it goes."""
        self._cluster.check_usable()
        self._need_running("stopped")
        if self._is_paused:
            self.resume()
        self._keep_frames()
        self._carrier.stop(LIMIT_S)
        self._cluster.settle_rules(self.id)

    def restart(self, in_sync: bool = True, limit_s: float = START_LIMIT_S) -> None:
        """Start the node again with the same data, address and rules. A node that still runs is stopped cleanly first.

        Return when it serves clients and, with ``in_sync``, when its replicas are in sync. Raise StartFailed and
        CrucibleTimeout.
        """
        self._cluster.check_usable()
        if self.is_running:
            self.stop()
        self.begin_start()
        self._carrier.wait_ready(limit_s)
        if in_sync:
            self._cluster.await_in_sync(self.id, limit_s)

    def pause(self) -> None:
        """Stop the node's work until ``resume``, as SIGSTOP does: connections stay open, and nothing is served.

        Others lead its partitions after ``broker.session.timeout.ms``. Its observation has to wait, too.
        """
        self.command("pause")
        self._is_paused = True

    def resume(self) -> None:
        """Let a paused node go on. A node that is not paused goes on as it is."""
        self.command("resume")
        self._is_paused = False

    def isolate(self) -> None:
        """Cut all links between this node and the others, until ``heal``. Clients reach it still."""
        self._cluster.isolate(self.id)

    def heal(self) -> None:
        """Mend the links of a node that is isolated."""
        self._cluster.heal(self.id)

    def slow_disk(self, by_ms: int) -> None:
        """Make each sync of the disk take longer, until it is called with 0 or the node restarts."""
        if by_ms < 0:
            raise ValueError(f"by_ms is {by_ms}: give at least 0.")
        self.command("slow_disk", by_ms=by_ms)

    def full_disk(self, is_full: bool = True) -> None:
        """Let the disk refuse what needs space, until it is called with False or the node restarts. Requests fail with
        KAFKA_STORAGE_ERROR, and a node that cannot write its metadata ends."""
        self._may_end = self._may_end or is_full
        self.command("full_disk", full=is_full)

    def clock_offset(self, milliseconds: int) -> None:
        """Set the node's wall clock ahead of the machine's, or behind it, until the node restarts."""
        self.command("clock_offset", offset_ms=milliseconds)

    def log_lines(self) -> list[str]:
        """Return the node's log, one JSON object a line, of all its incarnations."""
        return self._carrier.log_lines()

    def metrics(self) -> dict[str, int]:
        """Return the node's metrics by Kafka's MBean names; of histograms the count."""
        return dict(self.command("metrics"))

    # What the cluster uses

    @property
    def controller_address(self) -> str:
        return self._listeners.controllers.address

    def begin_start(self) -> None:
        self._note_crash()
        self._may_end, self._started_at_s = False, time.time()
        self._carrier.start(self._cluster.spec_of(self.id, self._listeners, self._folder))

    def wait_ready(self, limit_s: float) -> None:
        self._carrier.wait_ready(limit_s)

    def crashes(self) -> list[str]:
        """Return a text for each time that the node has ended by itself since ``forget_crashes``."""
        self._note_crash()
        return list(self._crashes)

    def forget_crashes(self) -> None:
        self._crashes.clear()

    def _note_crash(self) -> None:
        if self._may_end or not self._carrier.has_crashed:
            return
        self._may_end = True
        errors = [*error_lines(self.log_lines(), self._started_at_s)][-LAST_ERRORS:]
        first = f"Node {self.id} ended, though no test had ended it: {self._carrier.why_ended}"
        self._crashes.append("\n".join([first, *(["Its last errors and warnings:"] if errors else []), *errors]))

    def end(self) -> None:
        """End the node for good, whatever its state."""
        self._carrier.kill()
        self._listeners.release()

    def command(self, name: str, /, limit_s: float = LIMIT_S, **arguments: Plain) -> Plain:
        """Carry out a command inside the node. Raise NodeDead, CrucibleTimeout, NotPossible."""
        self._cluster.check_usable()
        return self._carrier.command(name, arguments, limit_s)

    def frames(self, of_nodes: bool, api: str, client_id: str, newest: int | None = None) -> list[dict[str, Any]]:
        """Return the recorded frames that fit, or the newest of them, as plain values: those of clients of all
        incarnations."""
        kept = [] if of_nodes else self._frames
        if not self.is_serving:
            return list(kept)
        return [*kept, *self.command("frames", of_nodes=of_nodes, api=api, client_id=client_id, newest=newest)]

    def forget_frames(self) -> None:
        """Forget the frames and counts so far, of all incarnations."""
        self._frames.clear()
        self._request_counts.clear()
        if self.is_serving:
            self.command("forget_frames")

    def request_counts(self) -> list[tuple[str, str, int]]:
        """Return API, client ID and number of the clients' requests, of all incarnations."""
        now = self.command("request_counts") if self.is_serving else ()
        return [*self._request_counts, *((api, client_id, count) for api, client_id, count in now)]

    def _need_running(self, verb: str) -> None:
        if not self.is_running:
            raise NodeDead(does_not_run(self._carrier, f"be {verb}"))

    def _keep_frames(self) -> None:
        """Keep what the node has recorded, since it ends with the node. A paused node has nothing to give."""
        if self._is_paused:
            return
        with suppress(CrucibleError):
            frames, counts = self.command("frames", limit_s=1.0), self.command("request_counts", limit_s=1.0)
            self._frames += frames
            self._request_counts += [(api, client_id, count) for api, client_id, count in counts]
