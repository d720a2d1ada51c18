"""The folder and the command line of a new run."""

import sys
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_folder(out: Path | None, name: str, several: bool) -> Path:
    """Return the folder of a new run. Without ``out`` it is made here. It is named after the next second that is free,
    because several runs may start in the same second."""
    if out is not None:
        return out / name if several else out
    moment = datetime.now()
    while True:
        folder = ROOT / "runs" / f"{name}-{moment:%Y%m%d-%H%M%S}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            moment += timedelta(seconds=1)
        else:
            return folder


def command_line() -> str:
    return " ".join(["./crucible", *sys.argv[1:]])
