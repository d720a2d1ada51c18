"""Block sizes for tests of reads."""

import pytest

from reference_broker.remote_log.reading.tests.reading_world import BLOCK_SIZES, set_block_bytes


@pytest.fixture(params=BLOCK_SIZES)
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    set_block_bytes(monkeypatch, request.param)
    return int(request.param)
