"""Finds all checks of a simulated run in the files of this folder.

Every run gets all of them, whatever its scenario lists. To add a check, add a file.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from chaos import checks
from chaos.checks.check import Check, Surroundings
from reports.guarantees import GUARANTEES


@cache
def check_kinds() -> tuple[type[Check], ...]:
    """Returns every class in this folder that names a guarantee, in the order of the guarantees."""
    modules = [import_module(f"{checks.__name__}.{each.name}") for each in iter_modules(checks.__path__)]
    found = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Check) and each.guarantee and each.__module__ == module.__name__
    ]
    order = list(GUARANTEES)
    return tuple(sorted(found, key=lambda each: order.index(each.guarantee)))


def all_checks(around: Surroundings) -> tuple[Check, ...]:
    """Returns fresh checks for one run."""
    return tuple(kind(around) for kind in check_kinds())
