"""Combined nodes of Apache Kafka in KRaft mode. They can be killed and started again, and are always ended."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.cluster import Cluster, settings_of
from bench.peers.errors import PeerError
from bench.peers.kafka import HEAP, SETTINGS
from bench.peers.node import BrokerNode, end
from bench.targets.errors import TargetError
from bench.targets.layout import Plan
from bench.targets.loader import find

NAME = "Apache Kafka"


@contextmanager
def kafka_cluster(folder: Path, nodes: int, config: Mapping[str, str]) -> Iterator[Cluster]:
    """Makes new nodes below ``folder``, which are formatted and not launched. Raises PeerError when that fails.

    They end by SIGKILL. Nobody reads their files again, and nodes that end in order all at once would wait for a
    controller that has gone.
    """
    target = find("kafka")
    settings = {**SETTINGS, **config}
    plan = Plan(target, folder, total=nodes, words={"vm": HEAP}, settings=lambda node: settings_of(settings, node))
    try:
        layouts = plan.lay_out()
        for layout in layouts:
            layout.make()
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong
    members = [
        BrokerNode(NAME, each.number, each.port, each.command, each.log, plan.node.ready_limit_s) for each in layouts
    ]
    try:
        yield Cluster(NAME, members)
    finally:
        end(members, signal.SIGKILL)
