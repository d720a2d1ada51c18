"""A target that stands for as long as somebody needs it, without proxies and without a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from chaos.frame_proxy.target import nodes_of
from chaos.live.errors import SetupError
from chaos.live.outside.crew import TargetCrew
from chaos.live.outside.needs import chosen
from scenarios.model import Cluster

ASK_EVERY_S = 0.1
TOLD_LIMIT_S = 60.0


@contextmanager
def standing(target: str, folder: Path, cluster: Cluster | None = None) -> Iterator[TargetCrew]:
    """Starts the nodes of a target if that is ours to do, and ends them with the block. It only asks addresses alone.

    ``folder`` gets data, files and logs. ``cluster`` is what a scenario asks for: at least so many nodes, with these
    settings. Raises SetupError, TargetDied.
    """
    wanted = chosen(target)
    crew = TargetCrew(wanted, replace(cluster or Cluster(), observers=0), folder, folder, 0)
    try:
        crew.launch()
        while not crew.is_ready:
            crew.look()
            time.sleep(ASK_EVERY_S)
        if crew.total:
            _await_all(crew, target)
        yield crew
    finally:
        crew.close()


def _await_all(crew: TargetCrew, target: str) -> None:
    """Waits until the cluster tells clients of all its nodes."""
    deadline = time.monotonic() + TOLD_LIMIT_S
    while (found := len(nodes_of(crew.bootstrap))) < crew.total:
        if time.monotonic() > deadline:
            raise SetupError(f"{target} told clients of {found} nodes within {TOLD_LIMIT_S:g} s; it has {crew.total}.")
        crew.look()
        time.sleep(ASK_EVERY_S)
