"""The machine and the commit that produced a benchmark's figures."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, str | int]:
    """Return the processor's model, its number of cores, the system and Python's version."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def commit() -> str:
    """Return the clone's commit, with ``-dirty`` if its files differ from it. Outside a clone it is ``unknown``."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def where_measured() -> str:
    """Return machine and commit in one line."""
    about = machine()
    return f"{about['cpu']}, {about['cores']} cores, {about['system']}, Python {about['python']}, commit {commit()}"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
