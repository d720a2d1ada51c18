"""The process of a target's node. It tells us nothing, so all that it says goes to its log."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.children import ends_with_me
from bench.targets.layout import last_lines
from chaos.live.errors import NodeDied, SetupError, TargetDied
from chaos.live.processes import MAX_WORDS, Child

LAST_LINES = 3


class TargetProcess(Child):
    """Signals strike the whole process group, because the command may be a script that starts the broker.

    Raises SetupError if there is no such program. ``check`` raises TargetDied.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], stop_limit_s: float
    ) -> None:
        self._stop_limit_s = stop_limit_s
        self._environment = {**os.environ, **environment}
        try:
            super().__init__(name, command, log)
        except OSError as error:
            raise SetupError(f"{name}: {command[0]} cannot be started: {error.strerror}.") from error

    def _started(self, command: Sequence[str], log: Path, pass_fds: Sequence[int]) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
                preexec_fn=ends_with_me(),
            )

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def terminate(self, limit_s: float | None = None) -> str:
        """Sends SIGTERM, and SIGKILL after the target's own limit. Returns how the process ended."""
        return super().terminate(self._stop_limit_s if limit_s is None else limit_s)

    def ask_to_end(self) -> None:
        """Sends SIGTERM without waiting, and SIGKILL after the target's own limit."""
        super().ask_to_end()
        limit = threading.Timer(self._stop_limit_s, self._no_longer)
        limit.daemon = True
        limit.start()

    def _no_longer(self) -> None:
        if self.exit_status is None:
            self.send(signal.SIGKILL)

    def last_words(self) -> str:
        """Returns the last lines of the log."""
        try:
            return last_lines(self.log.read_text(errors="replace"), LAST_LINES)[-MAX_WORDS:]
        except OSError:
            return f"no log at {self.log}"

    def _death(self, when: str) -> NodeDied:
        return TargetDied(f"{self.name} {self.how_it_ended()}{when}, and no fault had struck it: {self.last_words()}")
