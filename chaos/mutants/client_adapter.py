"""Adapter of our own client with a mutant, for ``crucible client``.

    ./crucible client '.venv/bin/python -m chaos.mutants.client_adapter session_kept_after_error' --section sessions

A case that proves a mechanism of clients must be red on the client that lacks it. The exit code is 3 if the mutant was
never called.
"""

import runpy
import sys
from pathlib import Path

from chaos.mutants.mutant import apply
from chaos.mutants.registry import by_name

ADAPTERS = Path(__file__).resolve().parents[2] / "crucible_kafka" / "clients" / "adapters"
NEVER_CALLED = 3


def main(name: str) -> int:
    """Serve the protocol of adapters on standard input and output, and return the exit code."""
    sys.path.insert(0, str(ADAPTERS / "python"))
    applied = apply(by_name(name))
    runpy.run_path(str(ADAPTERS / "own" / "adapter.py"), run_name="__main__")
    return 0 if applied.calls else NEVER_CALLED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
