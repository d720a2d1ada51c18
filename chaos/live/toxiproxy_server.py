"""Toxiproxy's server in a pinned version.

No Python package contains the binary, so ``build`` compiles it (``bench.golang``). The set-up runs the build while it
installs packages, so this module imports no packages before a server starts.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import golang
from bench.children import ends_with_me
from bench.ports import free_port
from chaos.live.errors import SetupError
from reference_broker.serve.process import let_signals_end_me

HOST = "127.0.0.1"
VERSION = "2.12.0"
MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{VERSION}"
START_LIMIT_S = 10.0
ENVIRONMENT_VARIABLE = "CRUCIBLE_TOXIPROXY_SERVER"
"""Names a server binary to use instead of the built one."""


def home() -> Path:
    """Return the folder of the built binary, inside the virtual environment."""
    return Path(sys.prefix) / "toxiproxy" / VERSION


def find() -> Path:
    """Return the server's binary. Raise SetupError if there is none."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    candidates = [named, str(home() / "server"), shutil.which("toxiproxy-server")]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise SetupError(
        "The Toxiproxy server is not built: run `python -m chaos.live.toxiproxy_server build` (it needs Go, or access "
        f"to PyPI), or name a toxiproxy-server binary in {ENVIRONMENT_VARIABLE}."
    )


def build() -> Path:
    """Compile the server unless it is there. That takes about half a minute. Raise SetupError."""
    target = home() / "server"
    if os.access(target, os.X_OK):
        return target
    environment = {"GOBIN": str(target.parent), "GOFLAGS": "-modcacherw"}
    flags = f"-X github.com/Shopify/toxiproxy/v2.Version={VERSION}"
    try:
        golang.build(f"Toxiproxy {VERSION}", ["install", "-ldflags", flags, MODULE], target, environment)
    except golang.GoError as failure:
        raise SetupError(str(failure)) from failure
    return target


def _prepared() -> Callable[[], None]:
    """Return a function for the new process, which unblocks the signals that a cluster has blocked."""
    end_with_starter = ends_with_me()

    def prepare() -> None:
        end_with_starter()
        let_signals_end_me()

    return prepare


class ToxiproxyServer:
    """One server process with its client. Stop it with ``stop`` or by leaving the ``with`` block.

    ``address`` is HOST:PORT of its HTTP interface.
    """

    def __init__(self, log: Path) -> None:
        """Start the server on a free loopback port, and write its log to ``log``. Raise SetupError."""
        from chaos.live.toxiproxy import Toxiproxy

        binary = find()
        port = free_port()
        self.address = f"{HOST}:{port}"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(binary), "-host", HOST, "-port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "LOG_LEVEL": "info"},
                preexec_fn=_prepared(),
            )
        self.client = Toxiproxy(HOST, port)
        self._await_response(log)

    def died(self) -> int | None:
        """Return the exit status, or None while the server runs."""
        return self._process.poll()

    def stop(self) -> None:
        if self.died() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> "ToxiproxyServer":
        return self

    def __exit__(self, *ended: object) -> None:
        self.stop()

    def _await_response(self, log: Path) -> None:
        from chaos.live.toxiproxy import ToxiproxyError

        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.client.call("get", "/version")
                return
            except ToxiproxyError:
                if self.died() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise SetupError(f"The Toxiproxy server did not start; its log is {log}.") from None
                time.sleep(0.01)


def main() -> int:
    if sys.argv[1:] != ["build"]:
        print("usage: python -m chaos.live.toxiproxy_server build", file=sys.stderr)  # noqa: T201
        return 2
    try:
        print(build())  # noqa: T201
    except SetupError as failure:
        print(failure, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
