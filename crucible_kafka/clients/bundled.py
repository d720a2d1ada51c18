"""Finds an adapter, and builds it on first use: by a name (``own``), a version (``kafka-python@2.0.2``) or a path
(``./my-adapter``).

A bundled adapter is a folder of ``adapters`` with an ``adapter.toml``, for any language:

    version = "1.21.4"                                # the client's version, unless NAME@VERSION gives another
    needs = ["go"]                                    # programs that must be there
    build = [["go", "build", "-o", "{build}/adapter", "."]]
    run = ["{build}/adapter"]
    environment = {GOFLAGS = "-mod=mod"}              # for run and build
    package = "kafka-python"                          # Python: if this version is installed here, nothing is built

``{folder}`` is the adapter's folder, ``{version}`` the client's version, and ``{build}`` a folder in the cache that
begins as a copy of the adapter's files. Build commands run there. ``{python}`` is this Python while it builds, and then
that of ``{build}/venv``.
"""

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from crucible_kafka.clients.adapter import AdapterCommand

ADAPTERS: Final = Path(__file__).resolve().parent / "adapters"
LOOP_FOLDER: Final = ADAPTERS / "python"
"""Has ``adapter_loop.py``, which the adapters in Python import."""
FILE: Final = "adapter.toml"
BUILD_LIMIT_S: Final = 1800.0
COMPLETE: Final = ".complete"
"""A file in a build folder whose build has succeeded."""
LOG: Final = "build.log"
KEYS: Final = ("version", "package", "needs", "build", "run", "environment")
_MISSING: Final = re.compile(r"Could not (?:find|transfer) artifact \S+(?: in \w+| from/to \w+)?|error: .+")
"""First line of an error of Maven or a compiler. Their last lines are advice and counts."""
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]*")


class AdapterNotFound(Exception):  # noqa: N818 - says what is known
    """There is no such adapter, or it cannot be built. The text is one sentence."""


@dataclass(frozen=True, slots=True)
class BundledAdapter:
    """The content of an ``adapter.toml``."""

    name: str
    folder: Path
    run: Sequence[str]
    version: str = ""
    package: str = ""
    needs: Sequence[str] = ()
    build: Sequence[Sequence[str]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def bundled() -> list[str]:
    """Return the names of the bundled adapters."""
    return sorted(path.parent.name.replace("_", "-") for path in ADAPTERS.glob(f"*/{FILE}"))


def find(text: str, say: Callable[[str], None]) -> AdapterCommand:
    """Return how to start an adapter: a bundled name, a path, or a command line in quotes. One that is not built yet is
    built, and ``say`` gets a line about that. Raise AdapterNotFound."""
    words = shlex.split(text)
    if not words:
        raise AdapterNotFound("ADAPTER is empty: give a bundled name or the path of an executable.")
    name, _, version = text.partition("@")
    if name in bundled():
        return _command(text, _read(name), version, say)
    path = Path(words[0]).expanduser()
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise AdapterNotFound(f"{path} is not executable: chmod +x {path}.")
        return AdapterCommand(text, [str(path.resolve()), *words[1:]])
    if len(words) > 1 and (program := shutil.which(words[0])) is not None:
        return AdapterCommand(text, [program, *words[1:]])
    close = get_close_matches(name, bundled(), 1)
    meant = f": did you mean {close[0]}?" if close else ""
    raise AdapterNotFound(
        f"There is no adapter {text!r}{meant}. Bundled are {', '.join(bundled())}; others are given as the path of an "
        "executable."
    )


def _read(name: str) -> BundledAdapter:
    import tomllib

    folder = ADAPTERS / name.replace("-", "_")
    fields: dict[str, Any] = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
    if unknown := set(fields) - set(KEYS):
        raise AdapterNotFound(f"{FILE} of {name} has {', '.join(sorted(unknown))}, which no adapter has.")
    return BundledAdapter(name, folder, **fields)


def _command(text: str, adapter: BundledAdapter, version: str, say: Callable[[str], None]) -> AdapterCommand:
    if version and not adapter.version:
        raise AdapterNotFound(f"{adapter.name} has one version only: leave @{version} out.")
    version = version or adapter.version
    if version and not _VERSION.fullmatch(version):
        raise AdapterNotFound(f"{version!r} is no version.")
    values = {"folder": str(adapter.folder), "version": version, "build": "", "python": sys.executable}
    environment = {"PYTHONPATH": str(LOOP_FOLDER)}
    if not adapter.build or _is_installed(adapter.package, version):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(LOOP_FOLDER), os.environ.get("PYTHONPATH"))))
    else:
        build = _built(adapter, version, say)
        values |= {"build": str(build), "python": str(build / "venv" / "bin" / "python")}
    environment |= {key: _filled(value, values) for key, value in adapter.environment.items()}
    return AdapterCommand(text, [_filled(each, values) for each in adapter.run], environment)


def _is_installed(package: str, version: str) -> bool:
    try:
        return bool(package) and metadata.version(package) == version
    except metadata.PackageNotFoundError:
        return False


def cache_folder() -> Path:
    """Return where adapters are built."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "crucible" / "clients"


def _built(adapter: BundledAdapter, version: str, say: Callable[[str], None]) -> Path:
    """Return the folder of the built adapter. Another process that needs the same one waits for it."""
    digest = hashlib.sha256(version.encode())
    files = sorted(path for path in adapter.folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    for file in files:
        digest.update(file.relative_to(adapter.folder).as_posix().encode() + file.read_bytes())
    build = cache_folder() / f"{adapter.name}-{version or 'any'}-{digest.hexdigest()[:12]}"
    if (build / COMPLETE).exists():
        return build
    if lacking := [need for need in adapter.needs if shutil.which(need) is None]:
        raise AdapterNotFound(
            f"The adapter {adapter.name} is built with {', '.join(lacking)}, which this machine lacks."
        )
    build.parent.mkdir(parents=True, exist_ok=True)
    with (build.parent / f"{build.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (build / COMPLETE).exists():
            say(f"building the adapter {adapter.name} {version} in {build} (once)")
            shutil.rmtree(build, ignore_errors=True)
            shutil.copytree(adapter.folder, build, ignore=shutil.ignore_patterns("__pycache__"))
            _build(adapter, version, build)
            (build / COMPLETE).touch()
    return build


def _build(adapter: BundledAdapter, version: str, build: Path) -> None:
    values = {"folder": str(adapter.folder), "version": version, "build": str(build), "python": sys.executable}
    environment = {key: _filled(value, values) for key, value in adapter.environment.items()}
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (build / LOG).open("wb") as log:
        for words in adapter.build:
            command = [_filled(word, values) for word in words]
            try:
                done = subprocess.run(
                    command,
                    cwd=build,
                    env={**inherited, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=BUILD_LIMIT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise AdapterNotFound(f"The adapter {adapter.name} cannot be built: {error}.") from error
            if done.returncode != 0:
                reason = _failure_reason((build / LOG).read_text(errors="replace"))
                failed = f"{shlex.join(command)} failed{f' ({reason})' if reason else ''}; see {build / LOG}."
                raise AdapterNotFound(f"The adapter {adapter.name} {version} cannot be built: {failed}")


def _failure_reason(output: str) -> str:
    """Return the part of a build's output that names what is missing, or else its last line, or an empty string."""
    missing = _MISSING.search(output)
    return missing[0] if missing else (output.strip().splitlines() or [""])[-1]


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
