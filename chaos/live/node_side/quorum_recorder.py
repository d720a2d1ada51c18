"""Records each state of a live node's metadata log and quorum as a row of its trace.

The runner plays the rows of all nodes back for the checks of the quorum (``chaos.live.recorded_quorum``), which need
the states of all nodes. A row is written before the node's effects leave it, so it survives a SIGKILL.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from chaos.checks.fault_times import FaultTimes
from chaos.checks.log.batches import BatchIdentity
from chaos.checks.quorum.quorum_view import Member, QuorumView, Seen
from chaos.hooks.trace import PassiveHook, TraceRecorder
from reference_broker.core.events import Effect, Event
from reference_broker.ports.node_ports import Now

if TYPE_CHECKING:
    from reference_broker.core.node import Node

ROW: Final = "quorum_state"
"""The name of the trace row."""
_JSON: Final = msgspec.json.Encoder()


class RecordedState(msgspec.Struct, frozen=True, array_like=True):
    """The detail of a row: one node's state after an event. Offsets are those of the metadata log."""

    seen: Seen
    snapshots: tuple[tuple[int, int], ...]
    """end offset and epoch of each snapshot, ascending"""
    loaded: int
    """offset of the last record that the node's metadata has"""
    appended: tuple[BatchIdentity, ...]
    """batches of the log from the first one that is new or has changed; all of them in a process's first row"""


class QuorumRecorder(PassiveHook):
    """A hook that must see effects before any fault affects them. It compares a few numbers after each event, and does
    nothing unless ``is_wanted``. All node IDs are below ``max_nodes``."""

    def __init__(
        self, recorder: TraceRecorder, incarnation: int, origin_us: int, max_nodes: int, is_wanted: bool
    ) -> None:
        self._recorder = recorder
        self._incarnation = incarnation
        self._origin_us = origin_us
        self._view = QuorumView(max_nodes, 0, FaultTimes())
        self._view.on_appended.append(self._append)
        self._is_wanted = is_wanted
        self._node: Node | None = None
        self._appended: tuple[BatchIdentity, ...] = ()
        self._last: tuple[Seen, tuple[tuple[int, int], ...], int] | None = None

    def built(self, node: "Node") -> None:
        self._node = node

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        node = self._node
        if node is None or not self._is_wanted or not node.listening:
            return
        at_us, replica = now.mono_us - self._origin_us, node.broker.quorum_node
        self._view.observe(at_us, self._incarnation, node, False)
        snapshots = tuple((end_offset, epoch) for end_offset, epoch in replica.store.ids)
        state = self._view.nodes[node.broker.node_id].seen, snapshots, replica.loader.last_offset
        if state == self._last:
            return
        self._last = state
        self._recorder.add(at_us, ROW, _JSON.encode(RecordedState(*state, self._appended)).decode())
        self._appended = ()

    def _append(self, at_us: int, member: Member, batches: Sequence[BatchIdentity]) -> None:  # noqa: ARG002
        self._appended = tuple(batches)
