"""Modules that a node loads: few before it serves, the others while it is idle."""

import asyncio
import subprocess
import sys

import pytest

from reference_broker.apis import registry
from reference_broker.apis.registry import SERVED
from reference_broker.quorum.snapshots import format as snapshot_format
from reference_broker.serve import start_up

LEAN = """
import sys
from reference_broker.serve.start_up import leave_out

leave_out()
from reference_broker.core.node import Node
from reference_broker.records.batch import BatchHeader
from crc32c import crc32c

assert crc32c(b"123456789") == 0xE3069283
assert sys.modules["hypothesis"] is None
print(" ".join(sorted({"importlib.metadata", "argparse", "email", "kio.serial"} & sys.modules.keys())))
"""


@pytest.mark.live
def test_start_omits_unneeded_modules_of_libraries() -> None:
    node = subprocess.run([sys.executable, "-c", LEAN], capture_output=True, text=True, check=True)
    assert node.stdout.split() == []


def test_apis_are_loaded_one_by_one_after_start(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(start_up, "WARM_UP_AFTER_S", 0.01)
    monkeypatch.setattr(start_up, "WARM_UP_EVERY_S", 0.0)
    monkeypatch.setattr(registry, "load", loaded.append)
    monkeypatch.setattr(snapshot_format, "prepare", lambda: loaded.append("snapshots"))

    async def up() -> None:
        done = asyncio.Event()
        start_up.warm_up(asyncio.get_running_loop(), done.set)
        assert not loaded, "waiting connections are served first"
        await asyncio.wait_for(done.wait(), 10)

    asyncio.run(up())
    assert loaded == [*SERVED, "snapshots"]
