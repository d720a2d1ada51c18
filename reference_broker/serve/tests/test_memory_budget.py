"""One bound for the memory of all connections: which are closed when it is reached, and the share of nodes."""

import pytest

from reference_broker.metrics.metrics import Counter, Gauge, Metrics
from reference_broker.serve.memory_budget import (
    FREED_SHARE,
    NODES_SHARE,
    RESERVE_SHARE,
    WORTH_CLOSING_BYTES,
    MemoryBudget,
)

LIMIT = 64 << 20
FOR_CLIENTS = LIMIT - LIMIT // NODES_SHARE
MIB = 1 << 20


class Peer:
    """``since_s`` is None while the peer waits for the node."""

    def __init__(self, holds: int, since_s: float | None = 1.0, of_node: bool = False) -> None:
        self.holds = holds
        self.since_s = since_s
        self.of_node = of_node
        self.evicted = ""

    def held_bytes(self) -> int:
        return self.holds

    def waits_since_s(self) -> float | None:
        return self.since_s

    def evict(self, reason: str) -> int:
        self.evicted = reason
        held, self.holds = self.holds, 0
        return held


def full(budget: MemoryBudget, peers: list[Peer]) -> list[int]:
    """Return the indexes of the closed peers."""
    for peer in peers:
        budget.changed(peer)
    return [place for place, peer in enumerate(peers) if peer.evicted]


def test_nothing_is_closed_within_bound() -> None:
    assert full(MemoryBudget(LIMIT, Metrics()), [Peer(MIB) for _ in range(FOR_CLIENTS // MIB)]) == []


def test_longest_holders_are_closed_until_eighth_is_free() -> None:
    peers = [Peer(4 * MIB, since_s=(7 * place) % 100) for place in range(FOR_CLIENTS // (4 * MIB) + 1)]
    closed = full(MemoryBudget(LIMIT, Metrics()), peers)
    oldest = sorted(range(len(peers)), key=lambda place: peers[place].since_s or 0)
    assert closed == sorted(oldest[: len(closed)])
    assert sum(peer.holds for peer in peers) <= FOR_CLIENTS - FOR_CLIENTS // FREED_SHARE
    assert len(closed) == 3
    assert "queued.max.request.bytes" in peers[closed[0]].evicted


def test_connections_waiting_for_node_are_closed_last() -> None:
    served = [Peer(4 * MIB, since_s=None) for _ in range(6)]
    late = [Peer(4 * MIB, since_s=1000.0 + number) for number in range(7)]
    assert full(MemoryBudget(LIMIT, Metrics()), served + late) == [6, 7, 8]


def test_large_waiting_connections_are_closed_before_small_ones() -> None:
    served = [Peer(4 * MIB, since_s=None) for _ in range(13)]
    small = [Peer(1000, since_s=0.0) for _ in range(100)]
    closed = full(MemoryBudget(LIMIT, Metrics()), small + served)
    assert closed
    assert min(closed) >= len(small)


def test_waiting_connections_are_closed_if_no_others_hold_memory() -> None:
    assert full(MemoryBudget(LIMIT, Metrics()), [Peer(4 * MIB, since_s=None) for _ in range(13)])


def test_small_fragments_are_not_closed_without_effect() -> None:
    small = [Peer(WORTH_CLOSING_BYTES - 1, since_s=0.0) for _ in range(100)]
    large = [Peer(4 * MIB, since_s=5.0) for _ in range(12)]
    closed = full(MemoryBudget(LIMIT, Metrics()), small + large)
    assert closed
    assert min(closed) >= len(small)


def test_memory_read_meanwhile_is_not_counted() -> None:
    budget = MemoryBudget(LIMIT, Metrics())
    peers = [Peer(4 * MIB) for _ in range(12)]
    assert full(budget, peers) == []
    for peer in peers:
        peer.holds = 0
    assert full(budget, [*peers, Peer(30 * MIB)]) == []


def test_clients_and_nodes_have_separate_shares() -> None:
    budget = MemoryBudget(LIMIT, Metrics())
    clients = [Peer(4 * MIB) for _ in range(20)]
    assert full(budget, clients)
    nodes = [Peer(MIB, of_node=True) for _ in range(LIMIT // NODES_SHARE // MIB)]
    assert full(budget, nodes) == []
    before = [peer.evicted for peer in clients]
    assert full(budget, [Peer(MIB, of_node=True)] * 2) != [] or any(node.evicted for node in nodes)
    assert [peer.evicted for peer in clients] == before


def test_single_node_may_exceed_share_of_nodes() -> None:
    """A follower that is closed whenever it fetches the batch would stay out of sync for ever."""
    budget = MemoryBudget(LIMIT, Metrics())
    small = [Peer(1000, since_s=0.0, of_node=True) for _ in range(3)]
    first, second = Peer(LIMIT, since_s=1.0, of_node=True), Peer(LIMIT, since_s=2.0, of_node=True)
    assert full(budget, [*small, first]) == []
    assert full(budget, [first, second]) == [0], "of two, the one that has held memory longer goes"
    assert not any(peer.evicted for peer in small)
    assert full(budget, [Peer(FOR_CLIENTS + 1)]) == [0], "clients have no such right"


def test_closed_connection_is_dropped() -> None:
    budget = MemoryBudget(LIMIT, Metrics())
    for _ in range(100):
        peer = Peer(10 * MIB)
        budget.changed(peer)
        assert not peer.evicted
        budget.forget(peer)


def test_unlimited_budget_closes_nothing() -> None:
    assert full(MemoryBudget(-1, Metrics()), [Peer(1 << 40) for _ in range(10)]) == []


def test_metrics_report_used_free_and_closed() -> None:
    metrics = Metrics()
    budget = MemoryBudget(LIMIT, metrics)
    full(budget, [Peer(4 * MIB) for _ in range(13)])
    values = {row.name: row.metric.value for row in metrics.rows() if isinstance(row.metric, Counter | Gauge)}
    assert values["MemoryPoolUsed"] == 40 * MIB
    assert values["MemoryPoolAvailable"] == LIMIT - 40 * MIB
    assert values["ConnectionsClosedForMemoryPerSec"] == 3


@pytest.mark.parametrize("limit", [0, 1000])
def test_always_full_budget_still_works(limit: int) -> None:
    assert full(MemoryBudget(limit, Metrics()), [Peer(2000), Peer(2000)]) == [0, 1]


def test_requests_wait_until_closed_connections_are_gone() -> None:
    budget = MemoryBudget(LIMIT, Metrics())
    peers = [Peer(4 * MIB) for _ in range(13)]
    assert full(budget, peers) == [0, 1, 2]
    newcomer, node = Peer(0), Peer(0, of_node=True)
    assert budget.is_full(newcomer)
    assert not budget.is_full(node)
    budget.changed(peers[0])
    budget.forget(peers[0])
    assert not budget.is_full(newcomer), "40 MiB are held, 8 MiB of them by closing connections"


def test_small_requests_use_reserve_until_closed_connections_are_gone() -> None:
    budget = MemoryBudget(LIMIT, Metrics())
    peers = [Peer(FOR_CLIENTS // 20, since_s=number) for number in range(21)]
    assert full(budget, peers)
    small = Peer(0)
    assert budget.is_full(small)
    assert not budget.is_full(small, is_small=True)
    small.holds = FOR_CLIENTS // RESERVE_SHARE
    budget.changed(small)
    assert budget.is_full(small, is_small=True), "the reserve has an end, too"


def test_small_connections_are_not_counted_again() -> None:
    """Small connections are nearly all connections, and counting thousands of them takes milliseconds."""
    examined: list[Peer] = []

    class ExaminedPeer(Peer):
        def held_bytes(self) -> int:
            examined.append(self)
            return self.holds

    budget = MemoryBudget(LIMIT, Metrics())
    assert full(budget, [ExaminedPeer(WORTH_CLOSING_BYTES - 1) for _ in range(100)]) == []
    examined.clear()
    large = [ExaminedPeer(4 * MIB) for _ in range(12)]
    assert full(budget, list(large))
    assert set(examined) == set(large)


def test_small_connections_are_counted_again_before_closing_one() -> None:
    budget = MemoryBudget(LIMIT, Metrics())
    small = [Peer(WORTH_CLOSING_BYTES - 1) for _ in range(FOR_CLIENTS // WORTH_CLOSING_BYTES)]
    assert full(budget, small) == []
    for peer in small:
        peer.holds = 1000
    assert full(budget, [Peer(MIB, since_s=None)]) == []
    assert not any(peer.evicted for peer in small)
