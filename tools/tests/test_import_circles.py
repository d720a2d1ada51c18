"""Our modules can be imported in any order: no circle among imports at run time."""

from pathlib import Path

import pytest

from tools.import_circles import circles, first_circle, imports_at_run_time

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bench", "campaigns", "chaos", "crucible_kafka", "reference_broker", "reports", "scenarios", "tools")

HINTED = (
    {"bench.probe.broker", "bench.probe.case", "bench.probe.context"},
    {"chaos.frame_proxy.conversation", "chaos.frame_proxy.node_front"},
    {"chaos.sim.links", "chaos.sim.machine", "chaos.sim.network", "chaos.sim.store"},
    {f"crucible_kafka.clients.{module}" for module in ("adapter", "application", "case", "play")},
    {"crucible_kafka.library.cluster_life", "crucible_kafka.library.node_handle"},
    {f"reference_broker.serve.{module}" for module in ("connection", "driver", "request_decoder", "responses")},
)
"""Circles that only type hints close. The README of their room gives the reason."""


def planted(folder: Path, **modules: str) -> Path:
    (folder / "room").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / "room" / f"{name}.py").write_text(text)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("inside_functions", [False, True])
def test_our_modules_import_each_other_in_no_circle(inside_functions: bool) -> None:
    imports = imports_at_run_time(ROOT, PACKAGES, inside_functions=inside_functions)
    assert imports["tools.tests.test_import_circles"] == {"tools.import_circles"}
    assert " imports ".join(first_circle(imports)) == ""


@pytest.mark.thorough
def test_type_hints_close_only_the_circles_that_the_readmes_explain() -> None:
    imports = imports_at_run_time(ROOT, PACKAGES, inside_functions=True, for_type_hints=True)
    assert sorted(map(sorted, circles(imports))) == sorted(map(sorted, HINTED))


def test_circles_of_type_hints_are_found(tmp_path: Path) -> None:
    hints = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import room."
    root = planted(
        tmp_path, a=hints + "b", b="import room.a", c="import room.a\nimport room.d", d=hints + "e", e="import room.c"
    )
    imports = imports_at_run_time(root, ["room"], for_type_hints=True)
    assert sorted(map(sorted, circles(imports))) == [["room.a", "room.b"], ["room.c", "room.d", "room.e"]]


def test_circle_that_a_function_closes_is_found_if_wanted(tmp_path: Path) -> None:
    root = planted(tmp_path, a="import room.b", b="def later():\n    import room.a")
    assert set(first_circle(imports_at_run_time(root, ["room"], inside_functions=True))) == {"room.a", "room.b"}


@pytest.mark.parametrize(
    "closing",
    [
        "import room.a",
        "from room.a import x",
        "from . import a",
        "from .a import x",
        "try:\n    import room.a\nfinally: ...",
    ],
)
def test_planted_circle_is_named(tmp_path: Path, closing: str) -> None:
    root = planted(tmp_path, a="from room import b", b="import os\nfrom room.c import x", c=closing, d="import room.a")
    circle = first_circle(imports_at_run_time(root, ["room"]))
    assert circle[0] == circle[-1]
    assert " ".join(circle) in " ".join(["room.a", "room.b", "room.c"] * 2)


def test_mutual_imports_of_packages_are_circle(tmp_path: Path) -> None:
    root = planted(tmp_path, __init__="from room.a import x", a="from room import y")
    assert sorted(set(first_circle(imports_at_run_time(root, ["room"])))) == ["room", "room.a"]


@pytest.mark.parametrize(
    "harmless",
    [
        "def later():\n    import room.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import room.a",
        "import typing\nif typing.TYPE_CHECKING:\n    import room.a",
        "class C:\n    async def later(self):\n        from room import a",
    ],
)
def test_lazy_or_missing_import_closes_no_circle(tmp_path: Path, harmless: str) -> None:
    root = planted(tmp_path, a="import room.b", b=harmless)
    assert first_circle(imports_at_run_time(root, ["room"])) == []
