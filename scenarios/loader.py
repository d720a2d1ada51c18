"""Find scenario files and read their TOML into frozen values. Unknown keys are rejected.

Every refusal is one sentence that names the file, the key and what is allowed (``ScenarioError``; exit code 2).
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from scenarios.consistency import check, needed_by
from scenarios.declared import read
from scenarios.derived import sends_leader_epochs
from scenarios.fault_tables import read_fault
from scenarios.fields import Reader, ScenarioError, did_you_mean
from scenarios.model import Cluster, Scenario
from scenarios.revisions import MARK, in_revision, marked, revision_of

__all__ = ["Scenario", "ScenarioError", "find", "load", "load_all", "needed_by", "parse", "typed"]

FOLDER = Path(__file__).resolve().parent
CATALOGUE = FOLDER / "catalogue"
"""The scenarios' files, in one folder for each subject. File names are unique across subjects."""
REGRESSIONS = FOLDER / "regressions"
"""Scenarios of bugs that a search found. ``load_all`` omits them."""


def load_all() -> tuple[Scenario, ...]:
    """Return every scenario of the catalogue, by file name."""
    return tuple(load(path) for path in catalogue_files())


def catalogue_files() -> list[Path]:
    """Return the files of all subjects, by file name."""
    return sorted(CATALOGUE.glob("*/*.toml"), key=lambda path: path.name)


def find(name: str) -> Scenario:
    """Return the scenario with this file, stem (with or without its number), or number in the list of scenarios.

    A name that ends in ``@first``, ``@final`` or ``@none`` means the scenario in that revision."""
    name, mark, revision = name.partition(MARK)
    scenario = _find(name)
    return in_revision(scenario, revision) if mark else scenario


def _find(text: str) -> Scenario:
    path = Path(text)
    files = catalogue_files() + sorted(REGRESSIONS.glob("*.toml"))
    if path.suffix == ".toml":
        existing = path if path.exists() else next((file for file in files if file.name == path.name), None)
        if existing is None:
            raise ScenarioError(f"there is no file {text!r}; give a scenario's file, its stem or its number")
        return load(existing)
    stem = text.replace("_", "-")
    for file in files:
        number, _, rest = file.stem.partition("-")
        if stem == file.stem or (number.isdigit() and (stem == rest or (stem.isdigit() and int(stem) == int(number)))):
            return load(file)
    stems = [file.stem for file in files]
    names = [name for file in stems for name in (file, file.partition("-")[2]) if name]
    raise ScenarioError(
        f"there is no scenario {text!r}{did_you_mean(stem, names)}; give a file, its stem or its number "
        "(ls scenarios/catalogue/* lists all)"
    )


def typed(scenario: Scenario) -> str:
    """Return what to type for the scenario on a command line: its name, or its file if that is elsewhere."""
    folder = Path(scenario.path).resolve().parent
    if folder.parent == CATALOGUE or folder == REGRESSIONS:
        return scenario.name
    return marked(scenario.path, revision_of(scenario))


def typed_options(scenario: Scenario) -> str:
    """Return the options with which the scenario is played as it is here, where its file alone would not do: in the
    final revision of several, and with clients that send leader epochs."""
    file = load(Path(scenario.path))
    options = ""
    if revision_of(scenario) == "final" and len(file.revisions) > len(scenario.revisions) == 1:
        options += " --revision final"
    if sends_leader_epochs(scenario) and not sends_leader_epochs(file):
        options += " --leader-epochs"
    return options


def load(path: Path) -> Scenario:
    """Read one file. Raise ScenarioError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path.name}: is not valid TOML: {error}") from error
    return parse(table, path)


def parse(table: Mapping[str, object], path: Path) -> Scenario:
    """Return the scenario in a parsed TOML table. ``path`` gives its name. Raise ScenarioError."""
    top = Reader(table, path.name, "")
    if top.has("outside"):  # the former name of the key
        raise top.refusal("outside", "has another name now: write [[external_fault]]")
    least = {key: top.integer(key, low=0) for key in ("min_fetches", "min_acked")}
    least |= {f"sim_{key}": top.integer(f"sim_{key}", value, low=0) for key, value in least.items()}
    scenario = read(
        Scenario,
        top,
        name=path.stem,
        path=str(path),
        cluster=read(Cluster, top.table("cluster", required=False)),
        faults=tuple(read_fault(reader) for reader in top.tables("fault")),
        external_faults=tuple(read_fault(reader) for reader in top.tables("external_fault")),
        state=top.table("state", required=False).integers(),
        **least,
    )
    check(scenario, path.name)
    return scenario
