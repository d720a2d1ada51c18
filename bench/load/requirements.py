"""Requirements of a workload: features of its target, of this machine and of its client. Nothing here needs a running
broker, so a call that cannot succeed ends before one is started."""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.load import java_client
from bench.load.backlog import check_space
from bench.load.clients import JAVA, NATIVE
from bench.load.faults import LEADER
from bench.load.options import (
    LoadError,
    LoadOptions,
    client_of,
    durations_s,
    local_workers,
    rate_of,
    topic_settings,
)
from bench.load.workload import MAX_RECORDS_PER_S, UnplayableError, Workload, check_client, check_topics

SPARE_FILES: Final = 500
"""Number of files that a worker has open beside idle connections."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def check_playable(
    workload: Workload,
    options: LoadOptions,
    target: str,
    node_ids: Sequence[int] | None,
    has_links: bool,
    folder: Path | None,
) -> None:
    """Check a run before it begins.

    ``node_ids`` are those of nodes that are started here, with links to their clients if ``has_links``; None is for
    brokers that run elsewhere. ``folder`` is on the disk on which they write; None: nobody here knows it.

    :raises LoadError: the run cannot be carried out.
    """
    rate, (warmup_s, seconds) = rate_of(workload, options), durations_s(workload, options)
    try:
        check_client(workload, client_of(workload, options))
        check_topics(workload, topic_settings(workload, options))
        if options.acks == 0:
            _check_acks_0(workload, client_of(workload, options))
        if client_of(workload, options) == JAVA:
            java_client.check_playable(workload, rate, options.joining)
        if rate > MAX_RECORDS_PER_S:
            raise UnplayableError(f"{rate:,.0f} records/s are impossible; the most are {MAX_RECORDS_PER_S:,}")
        if folder is not None:
            copies = options.replication * (1 if workload.crucible.transform is None else 2)
            check_space(workload, rate, warmup_s + seconds, copies, folder)
    except UnplayableError as error:
        raise LoadError(f"{workload.name}: {error}.") from error
    try:
        _check_workers(workload, options, starts_nodes=node_ids is not None)
        if workload.crucible.faults:
            _check_faults(workload, seconds, node_ids, has_links)
    except UnplayableError as error:
        raise LoadError(f"{target}: {error}.") from error


def _check_acks_0(workload: Workload, client: str) -> None:
    """:raises UnplayableError: the workload has what needs acknowledgements."""
    own = workload.crucible
    keys = {
        "crucible.transactions": own.transactions,
        "crucible.transform": own.transform,
        "crucible.faults": own.faults,
        "consumerBacklogSizeGB": workload.consumer_backlog_size_gb,
    }
    if client != NATIVE:
        raise UnplayableError(f"the client {client} does not carry out acks=0; {NATIVE} does")
    for name, value in keys.items():
        if value:
            raise UnplayableError(f"{name} needs acknowledgements, and with acks=0 there are none")


def _check_workers(workload: Workload, options: LoadOptions, starts_nodes: bool) -> None:
    """:raises UnplayableError: the workers cannot play the workload."""
    if options.joining > workload.clients:
        raise UnplayableError(f"{options.joining} workers are too many for {workload.clients} clients")
    files, connections = resource.getrlimit(resource.RLIMIT_NOFILE)[1], workload.crucible.connections
    if connections / max(1, local_workers(workload, options)) > files - SPARE_FILES:
        raise UnplayableError(
            f"{connections:,} connections are more than a process may open here ({files:,} files): give more workers"
        )
    if options.listen is not None and options.listen[0] not in LOOPBACK and starts_nodes:
        raise UnplayableError(
            "brokers that are started here listen on 127.0.0.1, where workers of other machines have no way to them"
        )


def _check_faults(workload: Workload, seconds: float, node_ids: Sequence[int] | None, has_links: bool) -> None:
    """:raises UnplayableError: the faults cannot be injected."""
    if node_ids is None:
        raise UnplayableError("faults need nodes that are started here, and these brokers run elsewhere")
    if workload.consumer_backlog_size_gb:
        raise UnplayableError("faults do not go together with a backlog, whose duration nobody knows before")
    for fault in workload.crucible.faults:
        if fault.is_of_link and not has_links:
            raise UnplayableError("faults of links need links through Toxiproxy, which nobody has made")
        if fault.at_s >= seconds:
            raise UnplayableError(f"a fault at {fault.at_s:g} s is not within the {seconds:g} s of the measurement")
        if fault.node != LEADER and fault.node not in node_ids:
            raise UnplayableError(f"a fault's node {fault.node} is none of {', '.join(map(str, node_ids))}")
