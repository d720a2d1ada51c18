"""Mutants that no scenario names: defects chosen by reading the broker alone, to measure how many of them the simulator
kills. ``FILES`` has the first set. The second one, in ``second``, was written later, as a measurement of its own."""

from chaos.mutants.unplanned import (
    fetch_sessions,
    groups,
    metadata,
    quorum,
    replication,
    snapshots,
    storage,
    transactions,
)

FILES = (fetch_sessions, quorum, metadata, snapshots, groups, transactions, replication, storage)
