"""Mutants of the quorum of the metadata log."""

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Mutant

QUORUM = "reference_broker.quorum.quorum"
Function = Callable[..., Any]


class _Deaf:
    """A quorum's listener that does not hear of the end of a leadership until the next one begins."""

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


def _no_epoch_check_on_append(original: Function) -> Function:
    led: list[tuple[Any, int]] = []

    def append(self: Any, values: Any) -> Any:
        if self.is_leader:
            led[:] = [(quorum, epoch) for quorum, epoch in led if quorum is not self] + [(self, self.epoch)]
            if not isinstance(self.listener, _Deaf):
                self.listener = _Deaf(self.listener)
            return original(self, values)
        for quorum, epoch in led:
            if quorum is self:
                return self.log.append(self.ports.now(), values, epoch)
        return original(self, values)

    return append


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "no_epoch_check_on_append",
        "whoever has led once goes on appending in its old epoch",
        "node",
        f"{QUORUM}:Quorum.append",
        ("self", "values"),
        _no_epoch_check_on_append,
        ("T-4", "T-7"),
    ),
)
