"""How all commands speak to the person at the terminal. It knows no room, so that every room may import it."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

USAGE_ERROR = 2


@contextmanager
def one_sentence(*errors: type[BaseException]) -> Iterator[None]:
    """Turns errors that a person can put right into one sentence and exit code 2."""
    try:
        yield
    except errors as error:
        click.echo(f"crucible: {error}", err=True)
        sys.exit(USAGE_ERROR)


def progress(line: str) -> None:
    click.echo(f"  {line}", err=True)


def shown(path: Path) -> Path:
    """Returns the path relative to the current folder, if it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def need_java() -> None:
    if shutil.which("java") is None:
        click.echo(
            "crucible: Spark needs a Java runtime, 17 or newer; install one "
            "(Debian: apt-get install openjdk-17-jre-headless) and try again.",
            err=True,
        )
        sys.exit(USAGE_ERROR)
