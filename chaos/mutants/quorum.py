"""Mutants of the quorum of the metadata log."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.quorum.node_files import TEMPORARY_SUFFIX

QUORUM = "reference_broker.quorum.raft_client"


class _Deaf:
    """Wraps a quorum's listener, and reports the loss of leadership only when the next one is won."""

    def __init__(self, listener: Any) -> None:
        self._inner = listener
        self._lost_epoch = -1

    def leadership_lost(self, epoch: int) -> None:
        self._lost_epoch = epoch

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        if self._lost_epoch >= 0:
            self._inner.leadership_lost(self._lost_epoch)
            self._lost_epoch = -1
        self._inner.leadership_won(epoch, start_offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@mutant(f"{QUORUM}:KafkaRaftClient.append", remembers=True)
def no_epoch_check_on_append(original: Function, led: dict[Any, int], self: Any, values: Any) -> Any:
    """A node that has led once continues to append in its old epoch (T-4, T-7). ``led`` has that epoch for each
    quorum."""
    if self.is_leader:
        led[self] = self.epoch
        if not isinstance(self.listener, _Deaf):
            self.listener = _Deaf(self.listener)
        return original(self, values)
    if self in led:
        return self.log.append(self.ports.now(), values, led[self])
    return original(self, values)


@mutant(f"{QUORUM}:put_in_place", one_use="The file with the cluster's ID is put in place by it, too.")
def vote_sent_before_its_name_is_durable(
    original: Function, disk: Any, ports: Any, temporary: str, done: Callable[[], None]
) -> None:
    """A voter responds, and a candidate requests votes, when the file with its epoch and vote is durable, but its name
    is not."""

    def synced() -> None:
        disk.rename(temporary, temporary.removesuffix(TEMPORARY_SUFFIX))
        done()

    ports.sync((temporary,), synced)
