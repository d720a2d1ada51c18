"""Targets for tests: the reference broker as anybody's, and programs that are no broker."""

import json
from collections.abc import Sequence
from pathlib import Path

BROKER = """
title = "A small broker"
nodes = {nodes}

[node]
command = {command}
peer = "{{id}}@{{address}}"
links = "peers"
ready_limit_s = {limit_s}
"""
SERVE = (
    "exec '{python}' -m reference_broker.serve.main --listen {address} --data '{data}' --node-id {id} "
    "--config controller.quorum.voters={voters} --config crucible.cluster.id={cluster_id}"
)


def target_file(
    folder: Path, script: str, nodes: int = 1, limit_s: float = 30.0, more: str = "", words: Sequence[str] = ()
) -> str:
    """Returns the path of a target whose node runs a shell script with these words. ``more`` stands in [node]."""
    path = folder / "broker.toml"
    path.write_text(
        BROKER.format(nodes=nodes, command=json.dumps(["sh", "-c", script, *words]), limit_s=limit_s) + more
    )
    return str(path)
