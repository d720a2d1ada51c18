"""``nox -s hostile``: 500 hostile peers of each kind at once, against one node and then against three."""

import argparse
import sys
import tempfile
from pathlib import Path

from bench.hostile.course import CoursePlan, play
from bench.hostile.lives import KINDS
from bench.peers.node import PeerError

SECONDS = 90.0
WAIT_S = 0.1
"""Nobody may wait longer because of what others send."""


def _tell(line: str) -> None:
    print(f"hostile: {line}", flush=True)  # noqa: T201


def main() -> int:
    """Return 0 if everything held, 1 if something broke, 2 if the cluster could not be had."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--peers", type=int, default=500, help="Of each kind.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Against each cluster.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Keep the nodes' files and logs here.")
    args = parser.parse_args()
    broken = False
    for nodes in args.nodes:
        with tempfile.TemporaryDirectory(prefix="crucible-hostile-") as scratch:
            folder = (args.folder or Path(scratch)) / f"{nodes}-nodes"
            plan = CoursePlan(
                nodes, args.peers, args.seconds, kinds=tuple(args.kinds), seed=args.seed, longest_wait_s=WAIT_S
            )
            _tell(f"{args.peers} peers of each of {len(args.kinds)} kinds against {nodes} nodes, {args.seconds:g} s")
            try:
                outcome = play(plan, folder, _tell)
            except PeerError as refusal:
                _tell(str(refusal))
                return 2
        _tell(str(outcome))
        for what in outcome.broken:
            _tell(f"BROKEN: {what}")
        broken = broken or bool(outcome.broken)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
