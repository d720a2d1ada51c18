"""How a Spark job judges one guarantee: what it needs, how much it looked at, and the frame of its breaches.

Each file in ``jobs/guarantees`` ends with one or two ``Judging`` values. ``all_judgings`` finds them there, so a new
job takes no more than a new file.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from pyspark.sql import DataFrame

from reports.guarantees import GUARANTEES, Guarantee
from reports.jobs import guarantees
from reports.read_tables import Tables

REPLICATION = ("F-22",)
"""Runs with replicated partitions exercise this clause."""
LOG = ("operations", "runs")
POLL = ("operations", "runs", "assignments")
ADMIN = ("operations", "changes")


@dataclass(frozen=True, slots=True)
class Judging:
    """One guarantee and the job that judges it.

    Without the tables of ``needs`` the guarantee is not judged, unless those of ``instead`` are there. ``evidence`` is
    the fact that says how much was looked at, counted in ``unit``. ``found_in`` is a table in which every breach has a
    row; where it is absent there is no breach and nothing to compute. A run that exercises none of the clauses in
    ``about`` may leave nothing to judge. If ``about`` is empty, every run must leave something.

    ``early`` finds breaches while the run goes on, if that must be more careful than ``find``."""

    name: str
    needs: tuple[str, ...]
    evidence: str
    unit: str
    find: Callable[[Tables], DataFrame]
    about: tuple[str, ...] = ()
    found_in: str = ""
    instead: tuple[str, ...] = ()
    early: Callable[[Tables], DataFrame] | None = None

    def missing(self, present: Collection[str]) -> list[str]:
        """The tables without which this run cannot be judged."""
        if self.instead and all(name in present for name in self.instead):
            return []
        return [name for name in self.needs if name not in present]

    @property
    def guarantee(self) -> Guarantee:
        return GUARANTEES[self.name]


@cache
def all_judgings() -> tuple[Judging, ...]:
    """One for each guarantee that the history can judge, in the order of the guarantees."""
    modules = [import_module(f"{guarantees.__name__}.{each.name}") for each in iter_modules(guarantees.__path__)]
    found = {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Judging)}
    unknown = [name for name in found if name not in GUARANTEES]
    assert not unknown, f"a job judges {unknown}, which reports/guarantees.py does not name"
    return tuple(found[name] for name in GUARANTEES if name in found)
