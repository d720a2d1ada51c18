"""The part of the build that pyproject.toml cannot express: a wheel also has the modules of four rooms that its
commands need (see ``tools/wheel_rooms.py``). An editable installation has none of them, for a clone has the rooms
themselves."""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.wheel_rooms import FOLDER, packed_files  # noqa: E402


class BuildWithRooms(build_py):
    """Copy the packages, and below one of them the modules of the rooms."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        rooms = Path(self.build_lib, FOLDER)
        shutil.rmtree(rooms, ignore_errors=True)  # What an older build has left in build/ would be packed, too.
        for name in packed_files(ROOT):
            target = rooms / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)

    def get_source_files(self) -> list[str]:
        """Return also what a wheel that is built from a source distribution needs."""
        return [*super().get_source_files(), "tools/__init__.py", "tools/wheel_rooms.py", *packed_files(ROOT)]


setup(cmdclass={"build_py": BuildWithRooms})
