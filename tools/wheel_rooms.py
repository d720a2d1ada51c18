"""Files of the rooms that a wheel packs: what its commands import, and data that they read.

``setup.py`` runs this while a wheel is built, when nothing is installed. So it imports the standard library alone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOMS: Final = ("bench", "chaos", "reports", "scenarios")
"""``reference_broker`` and ``crucible_kafka`` are packed as packages of their own."""
FOLDER: Final = "crucible_kafka/_rooms"
"""The folder of the wheel that has them: ``bench`` beside somebody's tests must not be ours."""
COMMANDS: Final = (
    "bench.probe.probe_command",
    "chaos.frame_proxy.proxy_command",
    "chaos.live.cluster_command",
    "chaos.live.kill",
)
"""The modules that ``crucible broker | cluster | probe | proxy`` import. ``client`` and ``serve`` need none."""
IMPORTED_BY_NAME: Final = ("bench/probe/cases/*.py",)
DATA: Final = ("bench/probe/kafka_responses/*", "bench/targets/reference.toml", "reports/page/style.css")


def packed_files(root: Path) -> list[str]:
    """Return the paths of the files to pack, relative to the clone ``root``, in order."""
    modules = [*COMMANDS, *(_module(path, root) for each in IMPORTED_BY_NAME for path in root.glob(each))]
    found: set[Path] = {path for each in DATA for path in root.glob(each) if path.is_file()}
    while modules:
        path = _file(modules.pop(), root)
        if path is not None and path not in found:
            found.add(path)
            modules += _imported(path)
    return sorted(path.relative_to(root).as_posix() for path in found)


def _file(module: str, root: Path) -> Path | None:
    """Return the file of a module of the rooms, or None for another name."""
    if module.partition(".")[0] not in ROOMS:
        return None
    path = root.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, also inside functions but not for type checkers alone, with the packages
    above them. Names that are no modules come, too."""
    for node in _running_code(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _running_code(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _running_code(child)
