"""What the command refuses before it starts anything."""

import os
from pathlib import Path

import pytest

from chaos.frame_proxy.command import Wish, run_proxy
from chaos.frame_proxy.proxy import Node
from chaos.live import foreign_target

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(NOBODY), f"No broker answers at {NOBODY}"),
        (Wish("nowhere"), "give HOST:PORT"),
        (Wish("127.0.0.1:²"), "give HOST:PORT"),
        (Wish("a..b:9092"), "No broker answers at a..b:9092"),
        (Wish(NOBODY, listen="0.0.0.0:0"), "not the loopback interface"),
        (Wish(NOBODY, control="everywhere"), "--control is 'everywhere'"),
        (Wish(NOBODY, rules=Path("missing.toml")), "cannot be read"),
    ],
)
def test_a_start_that_cannot_be_is_one_sentence(
    wish: Wish, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.frame_proxy.target.PATIENCE_S", 0.0)
    assert foreign_target.PATIENCE_S
    assert run_proxy(wish) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        ({1: os.getpid()}, "--process: node 1 is not among the target's: 0.\n"),
        ({0: 2**22 + 1}, f"--process: process {2**22 + 1} of node 0: No such process.\n"),
    ],
)
def test_a_process_that_cannot_be_struck_is_one_sentence(
    processes: dict[int, int], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.frame_proxy.command.nodes_of", lambda _: [Node(0, "127.0.0.1", 9)])
    monkeypatch.setattr("chaos.frame_proxy.command._serve", None)
    assert run_proxy(Wish(NOBODY, processes=processes)) == 2
    assert capsys.readouterr().err == f"crucible proxy: {told}"
