"""Play one seed with the code of another commit: ``python -P replay.py FILE SEED GUARANTEE``.

That commit's folder must be first on PYTHONPATH.

It ends with 1 if the guarantee breaks (or the outcome has that name), with 0 if not, and with 125 if that code cannot
play the file. These are the exit codes of ``git bisect run``. It calls as little as it can, and nothing that is new.
"""

import sys
from importlib import import_module

GOOD, BAD, CANNOT_TELL = 0, 1, 125


def main(file: str, seed: str, guarantee: str) -> int:
    try:
        from scenarios import loader

        try:
            play_seed = import_module("chaos.sim.one_seed").play_seed
        except ModuleNotFoundError:  # Older commits have it elsewhere.
            play_seed = import_module("chaos.search.run_sim").play

        verdict, _ = play_seed(loader.find(file), int(seed))
    except Exception as wrong:
        sys.stderr.write(f"{type(wrong).__name__}: {wrong}\n")
        return CANNOT_TELL
    return BAD if guarantee in (*verdict.broken, verdict.outcome.name) else GOOD


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
