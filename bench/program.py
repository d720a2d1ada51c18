"""The command's name in messages: a clone's launcher, or the command that an installed wheel brings."""

from pathlib import Path
from typing import Final

LAUNCHER: Final = Path(__file__).resolve().parents[1] / "crucible"
PROGRAM: Final = "./crucible" if LAUNCHER.is_file() else "crucible"
"""Messages that name another command begin it so."""
