"""Options of commands that play something in CI: a file of JUnit XML, and annotations of GitHub."""

from pathlib import Path

import click


def writable(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before anything is played for it."""
    if path is None:
        return None
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()  # A command that then fails must not leave a file that is no XML.
    except OSError as error:
        raise click.UsageError(f"{option.opts[0]} {path}: {error.strerror}") from error
    return path


JUNIT = click.option(
    "--junit", type=click.Path(path_type=Path), callback=writable, help="Write the results as JUnit XML to this file."
)
GITHUB = click.option(
    "--github/--no-github",
    "annotates",
    envvar="GITHUB_ACTIONS",
    help="Print what is red as annotations of GitHub (default: if GITHUB_ACTIONS=true).",
)
