"""The nodes of any target file whose processes we start. They can be killed and started again, and are always ended."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peers.cluster import Cluster, settings_of
from bench.peers.errors import PeerError
from bench.peers.node import BrokerNode, end
from bench.targets.errors import TargetError
from bench.targets.layout import Plan
from bench.targets.model import Chosen


@contextmanager
def target_cluster(
    chosen: Chosen,
    folder: Path,
    settings: Mapping[str, str],
    words: Mapping[str, str] | None = None,
    advertised: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Makes new nodes below ``folder``, which are prepared and not launched. Raises PeerError when that fails.

    ``settings`` are those of the brokers, by Kafka's names, and ``words`` replace placeholders of the file. With
    ``advertised``, clients reach each node at that HOST:PORT, if the file has the placeholder {advertised}. A target
    whose one process is all nodes has one member. All end by SIGKILL: nobody reads their files again, and nodes that
    end in order all at once may wait for a controller that has gone.
    """
    if chosen.file.node is None:
        raise PeerError(f"{chosen.text} runs elsewhere, and nothing here starts it; give its HOST:PORT.")
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        chosen, folder, words=words or {}, settings=lambda node: settings_of(settings, node), advertised=advertised
    )
    try:
        layouts = plan.lay_out()
        for layout in layouts:
            layout.make()
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong
    name, limit_s = chosen.file.title, plan.node.ready_limit_s
    members = [
        BrokerNode(name, each.number, each.port, each.command, each.log, limit_s, each.environment) for each in layouts
    ]
    try:
        yield Cluster(name, members)
    finally:
        end(members, signal.SIGKILL)


@contextmanager
def launched(chosen: Chosen, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """The same nodes, once they are ready. Raises PeerError."""
    with target_cluster(chosen, folder, settings or {}) as cluster:
        cluster.launch()
        cluster.await_ready()
        yield cluster
