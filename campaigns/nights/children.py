"""Runs commands for a night, each with a deadline and a log file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.children import ends_with_me

ROOT = Path(__file__).resolve().parents[2]
LOOKS_EACH_S = 0.2
ENDS_WITHIN_S = 30.0
"""A command that is told to end has so much time for what it has started. Then it is killed, and all of it with it."""
OVER = -1000
"""The exit code of a command whose time was over."""


@dataclass(frozen=True, slots=True)
class Done:
    """``code`` is the exit code, or OVER. ``said`` is the end of what it wrote."""

    code: int
    said: str

    @property
    def last_line(self) -> str:
        lines = [each.strip() for each in self.said.splitlines() if each.strip()]
        return lines[-1].removeprefix("crucible: ") if lines else "it said nothing"


def crucible(*words: str) -> list[str]:
    return [sys.executable, str(ROOT / "crucible_kafka"), *words]


def run(
    command: Sequence[str],
    until: float,
    log: Path,
    beat: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Done:
    """Runs the command until it ends, at most until this time (``time.monotonic()``). ``beat`` is called meanwhile."""
    log.parent.mkdir(parents=True, exist_ok=True)
    end_with_me = ends_with_me()

    def prepare() -> None:
        end_with_me()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Behind a shell's & it would be ignored.

    with (
        log.open("ab") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=prepare,
            start_new_session=True,  # Ctrl-C is the night's; it ends its commands one by one.
        ) as child,
    ):
        try:
            code = _awaited(child, until, beat)
        finally:
            if child.poll() is None:
                _end(child)
    return Done(code, _tail(log))


def _awaited(child: "subprocess.Popen[bytes]", until: float, beat: Callable[[], None]) -> int:
    while time.monotonic() < until:
        try:
            return child.wait(LOOKS_EACH_S)
        except subprocess.TimeoutExpired:
            beat()
    return OVER


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Lets the command end what it has started, and then kills what is left of its session."""
    child.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        child.wait(ENDS_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _tail(log: Path, most_bytes: int = 20_000) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - most_bytes))
        return file.read().decode(errors="replace")
