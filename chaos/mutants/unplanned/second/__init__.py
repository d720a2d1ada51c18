"""Second set of mutants that no scenario names: defects chosen on 30 November 2026 by reading the broker and its
specification alone, all of them before any was played."""

from chaos.mutants.unplanned.second import (
    fetch_sessions,
    fetches,
    groups,
    logs,
    metadata,
    quorum,
    replication,
    tiering,
    transactions,
)

FILES = (fetch_sessions, fetches, replication, logs, quorum, metadata, groups, transactions, tiering)
