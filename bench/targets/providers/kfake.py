"""kfake, the fake cluster of franz-go: ``kfake_server`` is a small program around it, with pinned modules. Go builds it
once into ``.cache``, which takes half a minute and 16 MB."""

from collections.abc import Mapping
from pathlib import Path

from bench import golang
from bench.targets.model import TargetError
from bench.targets.providers.kafka import CACHE

VERSION = "v0.0.0-20260918054303-01f206a7e32c"
"""The module has no releases. Its commit is that of ``kfake_server/go.mod``."""
WORDS = ("kfake",)
SOURCE = Path(__file__).resolve().parent / "kfake_server"


def provide(version: str) -> Mapping[str, str]:
    """Raise TargetError."""
    if version != VERSION:
        raise TargetError(f"kfake comes in version {VERSION} alone, whose modules are pinned; leave @{version} out.")
    product = CACHE / f"kfake-{VERSION}" / "kfake_server"
    if not product.exists():
        try:
            golang.build("kfake", ["build", "-C", str(SOURCE), "-buildvcs=false", "-o", str(product), "."], product)
        except golang.GoError as failure:
            raise TargetError(str(failure)) from failure
    return {"kfake": str(product)}
