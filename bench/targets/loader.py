"""Finds the target of a text: ``NAME``, ``FILE.toml`` or ``HOST:PORT``. A name or file may be followed by
``@VERSION`` and ``/NODES``.

Every refusal is one sentence that names the file, the key and what is allowed (``TargetError``).
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from bench.targets.model import (
    OF_A_COMMAND,
    OF_A_NODE,
    OF_A_SETTING,
    OF_AN_ADDRESS,
    Chosen,
    Commands,
    NodeFile,
    TargetError,
    TargetFile,
    named_in,
)
from scenarios.declared import read
from scenarios.fields import Reader, ScenarioError

FOLDER: Final = Path(__file__).resolve().parent
MAX_NODES: Final = 9
_WANTED = re.compile(r"(?P<name>[^@]+?)(@(?P<version>[\w.+-]+))?(/(?P<nodes>[0-9]+))?")
_ADDRESS = re.compile(r"(?P<host>[^\s/@]+):(?P<port>[0-9]{1,5})", re.ASCII)


class Provider(Protocol):
    """A module of ``bench.targets.providers``."""

    WORDS: tuple[str, ...]
    """The placeholders that it knows."""

    def provide(self, version: str) -> Mapping[str, str]:
        """Fetch or make what a version needs, once. Return the placeholders' texts. Raise TargetError."""
        ...


def bundled() -> list[str]:
    """Return the names of the targets in this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(text: str) -> Chosen:
    """Return the target of ``text``. It reads files and starts nothing. Raise TargetError."""
    if _is_address(text):
        return Chosen(text, TargetFile(name=text, title=text, addresses=(text,)), "", 0)
    match = _WANTED.fullmatch(text)
    path = _path(match["name"]) if match else None
    if match is None or path is None:
        raise TargetError(
            f"{text!r} is no target: give HOST:PORT, such as 127.0.0.1:9092, a FILE.toml, or one of: "
            f"{', '.join(bundled())}."
        )
    file = load(path)
    if match["version"] and not file.provider:
        raise TargetError(f"{text!r}: {file.name} comes in no versions; leave @{match['version']} out.")
    return Chosen(text, file, match["version"] or file.version, _count(text, file, match["nodes"]))


def load(path: Path) -> TargetFile:
    """Read and check one file. Raise TargetError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TargetError(f"{path}: is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{path.name}: is not valid TOML: {error}.") from error
    try:
        file = read(TargetFile, Reader(table, path.name, ""), name=path.stem)
    except ScenarioError as wrong:
        raise TargetError(f"{wrong}.") from wrong
    for complaint in _complaints(file):
        raise TargetError(f"{path.name}: {complaint}.")
    return file


def provider_of(file: TargetFile) -> Provider | None:
    if not file.provider:
        return None
    return cast(Provider, import_module(f"bench.targets.providers.{file.provider}"))


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match["port"]) < 65_536


def _path(name: str) -> Path | None:
    if not name.endswith(".toml"):
        return FOLDER / f"{name}.toml" if name in bundled() else None
    return next((path for path in (Path(name), FOLDER / Path(name).name) if path.exists()), Path(name))


def _count(text: str, file: TargetFile, wanted: str | None) -> int:
    if file.node is None:
        if wanted and int(wanted) != len(file.addresses):
            raise TargetError(f"{text!r}: {file.name} has {len(file.addresses)} addresses; leave /{wanted} out.")
        return len(file.addresses) if file.commands is not None else 0
    count = int(wanted) if wanted else file.nodes
    if not 1 <= count <= MAX_NODES:
        raise TargetError(f"{text!r}: a target has between 1 and {MAX_NODES} nodes.")
    return count


def _complaints(file: TargetFile) -> Iterator[str]:
    if (file.node is None) == (not file.addresses):
        yield "give either [node], how a node is started, or addresses, where nodes are"
    if file.commands is not None and not file.addresses:
        yield "[commands] need addresses: one HOST:PORT for each node"
    for address in file.addresses:
        if not _is_address(address):
            yield f"addresses has {address!r}, which is no HOST:PORT"
    if file.provider and file.provider not in _providers():
        yield f"provider is {file.provider!r}; allowed: {', '.join(_providers())}"
    elif file.node is not None:
        yield from _wrong_words(file.node, provider_of(file))
    if file.commands is not None:
        yield from _wrong_commands(file.commands)


def _providers() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "providers").glob("[a-z]*.py"))


def _wrong_words(node: NodeFile, provider: Provider | None) -> Iterator[str]:
    own = [*(f"{port}_port" for port in node.ports), *(key for key, _ in (*node.words, *node.observer))]
    known = [*OF_A_NODE, *own, *(provider.WORDS if provider else ())]
    texts = {
        "command": node.command,
        "prepare": node.prepare,
        "files": [text for _, text in node.files],
        "environment": [text for _, text in node.environment],
        "ready": [node.ready],
    }
    for key, found in texts.items():
        yield from _unknown(f"node.{key}", found, known)
    yield from _unknown("node.peer", [node.peer], (*OF_AN_ADDRESS, *(f"{port}_port" for port in node.ports)))
    yield from _unknown("node.setting", node.setting, OF_A_SETTING)
    yield from _unknown("node.feature", node.feature, OF_A_SETTING)
    for name, _ in node.files:
        if Path(name).name != name:
            yield f"node.files has {name!r}; give a name without a folder"


def _wrong_commands(commands: Commands) -> Iterator[str]:
    texts = {
        key: getattr(commands, key) for key in ("start", "ready", "alive", "stop", "kill", "pause", "resume", "log")
    }
    for key, text in texts.items():
        yield from _unknown(f"commands.{key}", [text], OF_A_COMMAND)
    if commands.pause and not commands.resume:
        yield "commands.resume is missing; without it a paused node would stay paused"
    for key in ("stop", "kill"):
        if texts[key] and not commands.start:
            yield f"commands.start is missing; without it a node would stay away after commands.{key}"


def _unknown(where: str, texts: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    for name in (name for text in texts for name in named_in(text)):
        if name not in known:
            yield f"{where} has the placeholder {{{name}}}; known there: {', '.join(sorted(known))}"
