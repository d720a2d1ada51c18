"""A target's node that shell commands reach: a container, a service, a process elsewhere."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

from bench.targets.model import Commands, filled
from chaos.live.errors import SetupError, TargetDied

COMMAND_LIMIT_S = 60.0
ALIVE_LIMIT_S = 10.0
LOOK_EVERY_S = 0.5


class ShellNode:
    """Does what ``chaos.live.processes.Child`` does for a process. It cannot see the process itself: ``alive`` tells
    whether there is one, and without that command it counts as alive until somebody has ended it.

    Raises SetupError for a command that fails.
    """

    def __init__(self, name: str, number: int, address: str, commands: Commands, log: Path) -> None:
        self.name = name
        self.log = log
        self.expected_end = False
        self.who = name
        self._words = {"id": str(number), "address": address}
        self._commands = commands
        self._ended = ""
        self._paused = False
        self._looked_s = 0.0
        self._runs = True

    def start(self) -> None:
        self._must("start")
        self._ended, self._runs, self._paused, self.expected_end = "", True, False, False

    def kill(self) -> str:
        return self._end("kill")

    def terminate(self, _: float | None = None) -> str:
        return self._end("stop")

    def ask_to_end(self) -> None:
        self.terminate()

    def pause(self) -> str:
        """Returns the state as a process would show it: T for stopped."""
        self._must("pause")
        self._paused = True
        return self.state()

    def resume(self) -> None:
        if self._paused:
            self._must("resume")
            self._paused = False

    def state(self) -> str:
        return "T" if self._paused else "S"

    @property
    def exit_status(self) -> int | None:
        """None while the node runs, and 0 when it does not: nobody knows how it ended."""
        if self._ended:
            return 0
        if self._commands.alive and not self._paused and time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._runs = self._is_alive()
        return None if self._runs else 0

    def check(self) -> None:
        """Raises TargetDied if the node ended and nobody asked for that."""
        if self.exit_status is not None and not self.expected_end:
            raise TargetDied(f"{self.name} {self.how_it_ended()}, and no fault had struck it: {self.last_words()}")

    def wait(self, limit_s: float | None = None) -> bool:
        """Looks whether the node has ended. Raises SetupError if the command that should have killed it did not."""
        deadline = time.monotonic() + (limit_s or 0.0)
        while self._ended and self._commands.alive and self._is_alive():
            if time.monotonic() > deadline:
                raise SetupError(f"{self.name} still runs after commands.kill: {self._filled(self._ended)}")
            time.sleep(LOOK_EVERY_S)
        return self.exit_status is not None

    def _is_alive(self) -> bool:
        """Asks ``alive``. Without an answer in time it counts as alive."""
        with suppress(SetupError):
            return self._run(self._commands.alive, ALIVE_LIMIT_S).returncode == 0
        return True

    def struck_elsewhere(self, kind: str) -> None:
        """Notes what the frame proxy has done by one of the commands."""
        if kind == "node_killed":
            self.expected_end, self._ended = True, self._commands.kill
        else:
            self._paused = True

    def how_it_ended(self) -> str:
        if self.exit_status is None:
            return "runs"
        return f"was ended: {self._filled(self._ended)}" if self._ended else "ended"

    def last_words(self) -> str:
        if not self._commands.log:
            return "it has no command for its log"
        try:
            return self._run(self._commands.log).stdout.strip()
        except SetupError as failure:
            return str(failure)

    def command(self, which: str) -> str:
        """Returns the text of a command for this node."""
        return self._filled(str(getattr(self._commands, which)))

    def close(self) -> None:
        """A node elsewhere stays, but not paused and not ended by us."""
        self.resume()
        if self._ended:
            self.start()

    def _end(self, which: str) -> str:
        self.expected_end = True
        if not self._ended:
            self._must(which)
            self._ended = str(getattr(self._commands, which))
        return f"{self.who} was ended: {self.command(which)}{' (SIGKILL)' if which == 'kill' else ''}"

    def _must(self, which: str) -> None:
        done = self._run(str(getattr(self._commands, which)))
        if done.returncode != 0:
            told = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it said nothing"]
            raise SetupError(f"{self.name}: commands.{which} failed with {done.returncode}: {told[0]}")

    def _run(self, text: str, limit_s: float = COMMAND_LIMIT_S) -> "subprocess.CompletedProcess[str]":
        words = self._filled(text)
        try:
            return subprocess.run(
                ["sh", "-c", words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise SetupError(f"{self.name}: {words!r} did not end within {limit_s:g} s.") from expired

    def _filled(self, text: str) -> str:
        return filled(text, self._words)
