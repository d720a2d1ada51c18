from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Note
from reference_broker.core.events import Event
from reference_broker.metrics.metrics import Gauge, Histogram

if TYPE_CHECKING:
    from reference_broker.core.node import Node

STARTED, LOADED, DAMAGED = "snapshot_started", "snapshot_loaded", "snapshot_damaged"

_Id: TypeAlias = tuple[int, int]
"""End offset and epoch."""


@dataclass(slots=True)
class _Snapshots:
    """What is known of the snapshots of one process of a node. ``started_us`` holds when it began each, by ID, and
    ``made_ms`` what each took that is there. A live node is not ``seen_from_start``, but from when it takes part in the
    quorum."""

    node: "Node"
    seen_from_start: bool
    held: dict[_Id, None] = field(default_factory=dict)
    started_us: dict[_Id, int] = field(default_factory=dict)
    made_ms: list[int] = field(default_factory=list)
    loaded: int = 0
    is_damaged: bool = False
    metrics: tuple[Gauge, Histogram, Histogram] | None = None


class SnapshotMetricsExact(Check):
    """snapshot-metrics-exact: the three metrics of KIP-630 tell of the snapshots that the node made, loaded and holds.

    ``SnapshotSizeBytes`` is the size of the newest snapshot that the node holds. ``GenSnapshotLatencyMs`` has an entry
    for each snapshot that the node has made, and ``LoadSnapshotLatencyMs`` one for each that it has loaded (S-14). What
    an attempt took is known from the note of its start and the event after which the snapshot is there.

    What a damaged snapshot's successor of the same ID took is not judged, since nothing shows when it is there.
    """

    guarantee = "snapshot-metrics-exact"
    needs_one_node = True
    acts_on = (STARTED, LOADED, DAMAGED, type(None))

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._nodes: dict[int, _Snapshots] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        known = self._nodes.get(node_id)
        if known is None or known.node is not node:
            known = self._nodes[node_id] = _Snapshots(node, seen_from_start=event is None)
        for effect in effects:
            if type(effect) is not Note:
                continue
            if effect.what == STARTED:
                fields = dict(effect.fields)
                known.started_us[int(fields["end_offset"]), int(fields["epoch"])] = at_us
            elif effect.what == LOADED:
                known.loaded += 1
            elif effect.what == DAMAGED:
                known.is_damaged = True

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        known = self._nodes.get(node.broker.node_id)
        if known is None or not node.listening:
            return
        store = node.broker.replica.store
        ids = store.ids
        for each in ids:
            if each not in known.held and each in known.started_us:
                known.made_ms.append((at_us - known.started_us[each]) // 1000)
        known.held = dict.fromkeys(ids)
        if known.metrics is None:
            known.metrics = _metrics(node)
            if not known.seen_from_start:
                known.loaded = known.metrics[2].count
        size, made, loaded = known.metrics
        newest = store.size(ids[-1]) if ids else 0
        if size.value != newest:
            self.violated(at_us, f"SnapshotSizeBytes is {size.value}, and the newest snapshot has {newest} bytes")
        if not known.is_damaged and (made.count, made.sum) != (len(known.made_ms), sum(known.made_ms)):
            found = f"GenSnapshotLatencyMs has {made.count} entries of {made.sum} ms"
            self.violated(at_us, f"{found}; the node made {len(known.made_ms)} in {sum(known.made_ms)} ms")
        if loaded.count != known.loaded:
            self.violated(
                at_us, f"LoadSnapshotLatencyMs has {loaded.count} entries, and the node loaded {known.loaded}"
            )


def _metrics(node: "Node") -> tuple[Gauge, Histogram, Histogram]:
    metrics, names = node.broker.metrics, ("kafka.controller", "KafkaController")
    return (
        metrics.gauge(*names, "SnapshotSizeBytes"),
        metrics.histogram(*names, "GenSnapshotLatencyMs"),
        metrics.histogram(*names, "LoadSnapshotLatencyMs"),
    )
