"""A machine without Java, and nights with few scenarios."""

from collections.abc import Callable

import pytest

from campaigns.nights import live_plays, night
from chaos.live.errors import SetupError
from scenarios import loader


@pytest.fixture(autouse=True)
def nothing_else_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, which is not even looked for."""

    def no_java() -> None:
        raise SetupError("there is no Java here")

    monkeypatch.setattr(night, "_java", str)
    monkeypatch.setattr(live_plays, "check_machine", no_java)


@pytest.fixture
def few_scenarios(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a night know these scenarios only."""

    def only(*names: str) -> None:
        found = tuple(loader.find(name) for name in names)
        monkeypatch.setattr(loader, "load_all", lambda: found)

    return only
