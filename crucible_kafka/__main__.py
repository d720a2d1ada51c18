"""Run the command line: ``python -m crucible_kafka``, or this folder by its path from any working directory."""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # Not this folder, whose files are no modules.

from crucible_kafka.cli import ROOT, main

main(prog_name="./crucible" if (ROOT / "crucible").is_file() else "crucible", complete_var="_CRUCIBLE_COMPLETE")
