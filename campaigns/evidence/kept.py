"""Results of each target, as JSON files in ``docs/evidence/data``. The pages are made of them alone."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.targets.model import Chosen
from campaigns.evidence.plays import Cell, Play

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evidence"
DATA = FOLDER / "data"


@dataclass(slots=True)
class EvidenceTarget:
    """A target."""

    target: str
    title: str
    version: str
    date: str = ""
    machine: str = ""
    left_out: int = 0
    """Number of cases that are omitted."""
    cases: Mapping[str, Cell] = field(default_factory=dict)
    scenarios: dict[str, Play] = field(default_factory=dict)
    """By name."""


def seen(chosen: Chosen, folder: Path = DATA) -> EvidenceTarget:
    """Return the stored results of a target, none if there is no file."""
    path = _path(chosen.text, folder)
    return read(path) if path.exists() else EvidenceTarget(chosen.text, chosen.file.title, chosen.version)


def read(path: Path) -> EvidenceTarget:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["cases"] = {name: Cell(**each) for name, each in content["cases"].items()}
    content["scenarios"] = {name: Play(**each) for name, each in content["scenarios"].items()}
    return EvidenceTarget(**content)


def keep(found: EvidenceTarget, folder: Path = DATA) -> None:
    """Write what was seen, with the date and the machine of today."""
    found.date, found.machine = datetime.now(UTC).date().isoformat(), machine()
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(found), indent=1, sort_keys=True)
    _path(found.target, folder).write_text(text + "\n", encoding="utf-8")


def everything(folder: Path = DATA) -> list[EvidenceTarget]:
    return [read(path) for path in sorted(folder.glob("*.json"))]


def machine() -> str:
    """The machine in a few words."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _path(target: str, folder: Path) -> Path:
    return folder / f"{target.replace('/', '-')}.json"
