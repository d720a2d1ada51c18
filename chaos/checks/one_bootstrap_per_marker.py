from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from chaos.checks.check import Check, Kind
from chaos.checks.history import History, Place, grouped, place
from reference_broker.core.effects import Effect, Note
from reference_broker.core.events import Event
from reports.rows import PositionRow

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings
    from reference_broker.core.node import Node

BEGUN = "unsafe_bootstrap"
MISSED = "tombstones_missed"


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer that told a marker, and the reason why the reader left its position then; empty if it went on."""

    at_us: int
    position: int
    marker: int
    left: str


class OneBootstrapPerMarker(Check):
    """one-bootstrap-per-marker: a fetcher that hears a marker above its position begins again, once for each marker,
    and none begins again without that (H-3 to H-7).

    Readers are judged by what they were told and did. In the normal mode a reader below the marker begins again (H-3).
    From then on it is unsafe, and remembers that marker. While the marker stays it goes on (H-5), and when the marker
    moves it begins again (H-6). At the marker it is back in the normal mode (H-7). The page does not say what comes
    after a smaller marker of another replica: what was read there may need tombstones that are gone elsewhere. So both
    is allowed then.

    Followers are judged by what they tell of their bootstraps. ``deleted-stays-deleted`` sees those that are left out.
    A follower may begin again for the same marker under another leader, which may have told a smaller one meanwhile.
    """

    guarantee = "one-bootstrap-per-marker"
    acts_on: ClassVar[tuple[Kind, ...]] = (BEGUN,)

    def __init__(self, around: "Surroundings") -> None:
        super().__init__(around)
        self._begun: dict[tuple[int, str], tuple[int, int]] = {}
        """by node and partition: the leader epoch and the marker of the last bootstrap"""

    # Followers

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Note and effect.what == BEGUN:
                told = dict(effect.fields)
                self._begins(
                    at_us, node.broker.node_id, str(told["partition"]), int(told["position"]), int(told["horizon"])
                )

    def _begins(self, at_us: int, node_id: int, partition: str, position: int, marker: int) -> None:
        self.looked_at += 1
        known = (each for each in self.around.replicas.partitions.values() if each.name == partition)
        epoch = next((each.state.leader_epoch for each in known), -1)
        before = self._begun.get((node_id, partition))
        self._begun[node_id, partition] = epoch, marker
        who = f"{partition} on node {node_id} began again at position {position} for the marker {marker}"
        if position >= marker:
            self.violated(at_us, f"{who}, which it is not below (H-7)")
        if before is not None and before[1] == marker and before[0] == epoch:
            self.violated(at_us, f"{who}, as it had done before (H-5)")

    # Readers

    def end(self, history: History) -> None:
        for reader, where, life in _lives(history):
            for told in _wrong(life):
                self.violated(told.at_us, f"{reader} at offset {told.position} of {where[0]}-{where[1]} {_story(told)}")
            self.looked_at += sum(each.left == MISSED for each in life)


def _story(told: Heard) -> str:
    if told.left == MISSED:
        return f"began again for the marker {told.marker}, for which it had begun or which it was not below (H-5, H-7)"
    return f"was told the marker {told.marker}, and went on (H-3, H-6)"


def _wrong(life: Sequence[Heard]) -> Iterator[Heard]:
    """Yields the answers after which a reader did not do what H-3 to H-7 say."""
    remembered, is_unsafe, was_smaller = 0, False, False
    for heard in life:
        if is_unsafe and heard.position >= remembered:
            is_unsafe = False  # H-7
        has_begun = heard.left == MISSED
        if not is_unsafe:
            must_begin, may_differ = heard.position < heard.marker, False
        else:
            must_begin, may_differ = heard.marker > remembered, was_smaller
            was_smaller = was_smaller or heard.marker < remembered
        if has_begun != must_begin and not may_differ:
            yield heard
        if has_begun:
            remembered, is_unsafe, was_smaller = heard.marker, True, False


def _lives(history: History) -> Iterator[tuple[str, Place, list[Heard]]]:
    """Yields what each reader with a view heard of each partition in each of its lives. The next life knows nothing."""
    ends = grouped(history.views, lambda row: (row.process, place(row)))
    left = {(row.process, place(row), row.at_us): row.reason for row in history.resets}
    for (reader, where), answers in grouped(_told(history), lambda each: (each[1].process, place(each[1]))).items():
        ended_us = sorted({row.at_us for row in ends.get((reader, where), ())})
        begins_us = -1
        for end_us in ended_us:
            yield (
                reader,
                where,
                [
                    _heard(at_us, row, left.get((reader, where, at_us), ""))
                    for at_us, row in sorted(answers, key=lambda each: (each[0], each[1].index))
                    if begins_us < at_us <= end_us
                ],
            )
            begins_us = end_us


def _heard(at_us: int, row: PositionRow, reason: str) -> Heard:
    return Heard(at_us, row.fetch_offset, row.tombstone_horizon, reason)


def _told(history: History) -> list[tuple[int, PositionRow]]:
    """Returns the answers that told a marker, each with its time. An answer that shows a truncation tells where to go
    on, and nothing else is taken of it (KIP-320)."""
    truncated = {(row.process, place(row), row.at_us) for row in history.resets if row.reason == "truncated"}
    found = []
    for row in history.positions:
        operation = history.operation_of.get((row.process, row.index))
        if operation is None or row.tombstone_horizon < 0 or row.error is not None:
            continue
        if (row.process, place(row), operation.complete_us) not in truncated:
            found.append((operation.complete_us, row))
    return found
