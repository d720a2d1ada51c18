"""A naive model of one transactional ID, written from KIP-98, KIP-360, KIP-890 and the clauses X-1, X-3 and X-7.

It knows no states and no arithmetic of epochs, only the history: which producer got which pair, by which request, and
the outcome of each transaction. ``owner`` is the pair of producer ID and epoch that was assigned last. A producer with
an earlier pair is fenced, unless it retries the request whose response it lost.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.wire.errors import Error, ErrorCode

Pair: TypeAlias = tuple[int, int]

LAST_EPOCH = 2**15 - 2
"""The greatest epoch that a producer may have (KIP-360). The one after it is for fencing."""


@dataclass
class Model:
    """``pending``: the outcome of a transaction whose markers are not all written yet. ``outcome``: that of the last
    completed one. ``requester``: the pair with which the producer requested ``owner``, or ended."""

    owner: Pair | None = None
    open: dict[int, None] | None = None
    pending: str | None = None
    outcome: str | None = None
    requester: Pair | None = None
    ended: Pair | None = None
    given: list[Pair] = field(default_factory=list)

    def assign_owner(self, pair: Pair) -> None:
        assert pair not in self.given, f"{pair} was given to two producers"
        self.given.append(pair)
        self.owner = pair

    def next_pair(self, fresh: int) -> Pair:
        assert self.owner is not None
        producer_id, epoch = self.owner
        return (fresh, 0) if epoch >= LAST_EPOCH else (producer_id, epoch + 1)

    # requests; the result is an error, or a word for the effect

    def init_producer_id(self, expected: Pair | None) -> Error | str:
        if self.owner is None:
            return "new"
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        knows = expected in (None, self.owner)
        if not knows and self.open is None and expected == self.requester:
            return "again"
        if not knows and not (self.open is not None and expected is not None and expected[0] == self.owner[0]):
            return ErrorCode.producer_fenced
        return "abort" if self.open is not None else "next"

    def add_partitions(self, pair: Pair) -> Error | str:
        if self.owner is None:
            return ErrorCode.invalid_producer_id_mapping
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        return self.wrong_producer(pair) or "open"

    def wrong_producer(self, pair: Pair) -> Error | None:
        assert self.owner is not None
        if pair[0] != self.owner[0]:
            return ErrorCode.invalid_producer_id_mapping
        return None if pair == self.owner else ErrorCode.producer_fenced

    def end(self, pair: Pair, outcome: str) -> Error | str:
        """End as clients of version 2 do: each end bumps the epoch."""
        if self.owner is None:
            return ErrorCode.invalid_producer_id_mapping
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        if self.ended == pair and self.outcome is not None and self.open is None:
            return "done" if outcome == self.outcome else ErrorCode.invalid_txn_state
        refused = self.wrong_producer(pair)
        if refused:
            return refused
        return "decide" if self.open is not None or outcome == "abort" else ErrorCode.invalid_txn_state

    def end_as_before(self, pair: Pair, outcome: str) -> Error | str:
        """End as older clients do: the epoch stays."""
        if self.owner is None:
            return ErrorCode.invalid_producer_id_mapping
        refused = self.wrong_producer(pair)
        if refused or self.pending is not None:
            return refused or ErrorCode.concurrent_transactions
        if self.open is not None:
            return "decide"
        return "done" if outcome == self.outcome else ErrorCode.invalid_txn_state

    # what happens

    def begin(self, partitions: list[int]) -> None:
        self.open = {**(self.open or {}), **dict.fromkeys(partitions)}
        self.ended = None

    def decide(self, outcome: str, by: Pair | None, then: Pair | None) -> None:
        """``by`` ended it and has ``then`` afterwards, or the coordinator aborted it after its timeout."""
        self.pending, self.open, self.ended = outcome, None, None
        if then is not None:
            self.assign_owner(then)
            self.ended = self.requester = by

    def complete(self) -> None:
        self.outcome, self.pending = self.pending, None
