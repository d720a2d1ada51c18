"""Mutants of the reference client, applied in the fleet's processes.

The fleet does not know mutants: its spec names a function to call first, with its arguments. A file in the run's logs
shows that the mutant was reached, since Locust's workers have no pipe to the runner.
"""

from pathlib import Path
from typing import Final

from chaos.live.run_folder import RunFolder
from chaos.mutants.mutant import apply
from chaos.mutants.registry import by_name

PRELUDE: Final = f"{__name__}:begin"
"""The value of FleetSpec.prelude."""
FILE: Final = "client-mutant-reached"


def words_for(mutant: str, folder: RunFolder) -> list[str]:
    """Return the value of FleetSpec.prelude_words."""
    return [mutant, str(folder.logs / FILE)]


def begin(mutant: str, file: str) -> None:
    """Apply the mutant in a process of the fleet. Raise MutantError."""
    apply(by_name(mutant), Path(file).touch)


def reached(folder: RunFolder) -> bool:
    return (folder.logs / FILE).exists()
