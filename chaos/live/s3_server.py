"""An S3 server over a folder (versitygw). Toxiproxy is in front of it.

The build takes a few minutes, so only nightly tests and people start it: ``python -m chaos.live.s3_server``.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from obstore.store import S3Store

from bench import golang
from bench.children import ends_with_me
from bench.ports import free_port
from chaos.live.errors import SetupError
from chaos.live.toxiproxy_server import ToxiproxyServer
from reference_broker.serve.object_store import Bucket

HOST = "127.0.0.1"
VERSION = "1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
START_LIMIT_S = 20.0
ENVIRONMENT_VARIABLE = "CRUCIBLE_VERSITYGW"
"""Names a binary to use instead of the built one."""
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "versitygw"
"""It outlives ``.venv``, which is rebuilt when a pinned version changes."""
BUCKET = "crucible"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "crucible", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}
PROXY = "s3"
NOTHING: Mapping[str, str] = {}


def build() -> Path:
    """Return the server's binary, compiling it if necessary. Raise SetupError."""
    target = CACHE / VERSION / "versitygw"
    for found in (os.environ.get(ENVIRONMENT_VARIABLE), str(target), shutil.which("versitygw")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    environment = {"GOBIN": str(target.parent), "GOFLAGS": "-modcacherw"}
    try:
        golang.build(f"versitygw {VERSION}", ["install", MODULE], target, environment)
    except golang.GoError as failure:
        raise SetupError(str(failure)) from failure
    return target


class S3Server:
    """The server with one empty bucket in ``folder``. Stop it by leaving the ``with`` block.

    ``endpoint`` is the address of the Toxiproxy proxy ``PROXY``, which is for toxics.
    """

    def __init__(self, folder: Path) -> None:
        """Raise SetupError."""
        (folder / "objects" / BUCKET).mkdir(parents=True)
        binary, port = build(), free_port()
        words = [str(binary), "--port", f"{HOST}:{port}", "--access", CREDENTIALS["AWS_ACCESS_KEY_ID"]]
        words += ["--secret", CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "--quiet", "--keep-alive"]
        words += ["posix", "--sidecar", str(folder / "sidecar"), str(folder / "objects")]
        (folder / "sidecar").mkdir()
        with (folder / "versitygw.log").open("ab") as output:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=ends_with_me()
            )
        self._await_response(port, folder / "versitygw.log")
        self.toxiproxy = ToxiproxyServer(folder / "toxiproxy.log")
        self.proxy = self.toxiproxy.client.create(f"{HOST}:{port}", PROXY, f"{HOST}:0")
        self.endpoint = f"http://{self.proxy.listen}"

    def bucket(self, prefix: str = "", limit_s: float = 10.0, config: Mapping[str, str] = NOTHING) -> Bucket:
        """Return the bucket as a node opens it. ``config`` of obstore overrides the settings for this server."""

        def store(retries: int) -> S3Store:
            return S3Store.from_url(
                f"s3://{BUCKET}/{prefix}",
                config={"endpoint": self.endpoint, **self._credentials(), **config},  # type: ignore[arg-type]
                client_options={"timeout": timedelta(seconds=limit_s), "allow_http": True},
                retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=limit_s)},
            )

        return Bucket(store(2), store(0))

    def __enter__(self) -> "S3Server":
        return self

    def __exit__(self, *ended: object) -> None:
        self.toxiproxy.stop()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _credentials(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in CREDENTIALS.items()}

    def _await_response(self, port: int, log: Path) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                urlopen(f"http://{HOST}:{port}/", timeout=1).close()
                return
            except HTTPError:
                return  # It wants credentials, so it serves.
            except (URLError, OSError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._process.kill()
                    raise SetupError(f"versitygw did not start; its log is {log}.") from None
                time.sleep(0.05)


if __name__ == "__main__":
    print(build())  # noqa: T201
