"""Write generated histories of any size, and measure how long their verdicts take.

Examples:
  python -m reports.scale generate 1000000 --out RUN_DIR
  python -m reports.scale generate 1000000 --plant --out RUN_DIR
  python -m reports.scale measure 100000 1000000 10000000 --out FOLDER --picture docs/scale.png
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports.scale.measuring import draw, measure, remember, remembered, table
from reports.scale.violations import MIN_APPENDS, NOTHING, planted
from reports.scale.writing import appends_for, write_history


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="reports.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    generate = commands.add_parser("generate", help="write the history of a run")
    generate.add_argument("operations", type=int)
    generate.add_argument("--plant", action="store_true", help="plant one violation of each of several guarantees")
    generate.set_defaults(command=_generate)
    measuring = commands.add_parser("measure", help="judge clean histories of these sizes")
    measuring.add_argument("operations", type=int, nargs="+")
    measuring.add_argument("--picture", type=Path, help="draw all that was measured in this folder")
    measuring.set_defaults(command=_measure)
    for each in (generate, measuring):
        each.add_argument("--out", type=Path, required=True, help="folder of the run, or of all runs")
        each.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    return int(options.command(options))


def _generate(options: argparse.Namespace) -> int:
    appends = appends_for(options.operations)
    if options.plant and appends < MIN_APPENDS:
        sys.stderr.write("Violations have no room in so short a history: give 100000 operations or more.\n")
        return 2
    violations = planted(appends, options.seed) if options.plant else NOTHING
    written = write_history(options.out, options.operations, options.seed, violations)
    sys.stdout.write(f"{written.operations:,} operations, {written.records_read:,} records read\n")
    for name, place in violations.places.items():
        sys.stdout.write(f"planted {name}: {place}\n")
    return 0


def _measure(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    for operations in options.operations:
        remember(measure(operations, options.out, options.seed), options.out)
        sys.stdout.write(f"{table(remembered(options.out))}\n")
    if options.picture:
        draw(remembered(options.out), options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
