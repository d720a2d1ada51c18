"""Output of all commands: lines, tables, one-sentence errors.

It also checks Java and the free disk space. It imports no room.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

USAGE_ERROR = 2
MIN_FREE_BYTES = 1_000_000_000
"""A run of a minute leaves some 100 MB, most of it in the nodes' logs."""


@contextmanager
def one_sentence(*errors: type[BaseException]) -> Iterator[None]:
    """Turn errors that a person can put right into one sentence and exit code 2."""
    try:
        yield
    except errors as error:
        click.echo(f"crucible: {error}", err=True)
        sys.exit(USAGE_ERROR)


def progress(line: str) -> None:
    click.echo(f"  {line}", err=True)


def shown(path: Path) -> Path:
    """Return the path relative to the current folder, if it is below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*headings)
    for cells in rows:
        drawn.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(drawn)


def need_java() -> None:
    if shutil.which("java") is None:
        refuse("Spark needs a Java runtime, 17 or newer; install one (Debian: apt-get install openjdk-17-jre-headless)")


def need_disk(folder: Path) -> None:
    """Refuse to play while so little is free that a run might fill the disk. ``folder`` need not exist yet."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    usage = shutil.disk_usage(there)
    if usage.total and usage.free < MIN_FREE_BYTES:  # A file system without a size, such as /proc, holds no runs.
        least = f"{MIN_FREE_BYTES / 1e9:g} GB"
        refuse(
            f"only {usage.free / 1e9:.1f} GB are free below {there}, and a run wants {least}; delete old runs "
            "(./crucible runs --prune) or give --out a folder on another disk"
        )


def refuse(why: str) -> NoReturn:
    """End with one sentence and exit code 2."""
    click.echo(f"crucible: {why}, and try again.", err=True)
    sys.exit(USAGE_ERROR)


def show_page(page: Path) -> None:
    """Open a page in the browser. Where there is none, it prints the path."""
    if click.launch(str(page)):
        progress(f"no browser could be started; open {shown(page)} yourself")
