"""Targets for tests: the reference broker as anybody's, and programs that are no broker."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ports import free_port

BROKER = """
title = "A small broker"
nodes = {nodes}

[node]
command = {command}
peer = "{{id}}@{{address}}"
links = "peers"
ready_limit_s = {limit_s}
"""
ELSEWHERE = """
title = "A broker that shell commands reach"
addresses = ["{listen}"]

[commands]
start = "{start}"
alive = "kill -0 $(cat {folder}/pid)"
kill = "kill -9 $(cat {folder}/pid)"
"""
SERVE = (
    "exec '{python}' -m reference_broker.serve.main --listen {address} --data '{data}' --node-id {id} "
    "--config controller.quorum.voters={voters} --config crucible.cluster.id={cluster_id}"
)


def target_file(
    folder: Path, script: str, nodes: int = 1, limit_s: float = 30.0, more: str = "", words: Sequence[str] = ()
) -> str:
    """Return the path of a target whose node runs a shell script with these words. ``more`` is added to [node]."""
    path = folder / "broker.toml"
    path.write_text(
        BROKER.format(nodes=nodes, command=json.dumps(["sh", "-c", script, *words]), limit_s=limit_s) + more
    )
    return str(path)


@contextmanager
def elsewhere(folder: Path) -> Iterator[str]:
    """Yield the path of a target of one node that shell commands start and kill."""
    listen = f"127.0.0.1:{free_port()}"
    start = folder / "start.sh"
    serve = f"'{sys.executable}' -m reference_broker.serve.main --listen {listen} --data '{folder}/data'"
    start.write_text(f"setsid {serve} > {folder}/log 2>&1 < /dev/null & echo $! > {folder}/pid")
    target = folder / "elsewhere.toml"
    target.write_text(ELSEWHERE.format(listen=listen, start=f"sh {start}", folder=folder))
    try:
        yield str(target)
    finally:
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
