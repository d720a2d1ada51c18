"""How the descriptors of the process are shared out, so that no use of them can take the last ones."""

import errno
from dataclasses import dataclass

RESERVED = 48
"""Standard streams, the lock, listening sockets (several each), connections to other nodes, folders that are listed."""
LEAST_CONNECTIONS = 8
MOST_FOR_SYNCS = 1024


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """Most descriptors for each use."""

    files: int
    syncs: int
    connections: int


def plan_descriptors(limit: int, wanted_files: int = 0) -> DescriptorPlan:
    """Shares out ``limit`` descriptors (RLIMIT_NOFILE). ``wanted_files`` is ``crucible.max.open.files``; 0: a quarter.

    Connections get what is left. The event loop accepts all that wait before it can refuse any, so for a moment there
    may be more; then ``OpenFiles`` and ``FileSyncs`` make room for what the node needs.
    """
    files = wanted_files or max(16, limit // 4)
    syncs = max(8, min(MOST_FOR_SYNCS, limit // 8))
    return DescriptorPlan(files, syncs, max(LEAST_CONNECTIONS, limit - files - syncs - RESERVED))


def is_out_of_descriptors(failure: BaseException) -> bool:
    """Whether something failed only because the process, or the machine, has no free descriptor at the moment."""
    return isinstance(failure, OSError) and failure.errno in (errno.EMFILE, errno.ENFILE)
