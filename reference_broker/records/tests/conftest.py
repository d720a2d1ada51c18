"""Property tests run on busy machines too: no time limit for one example (pytest-timeout guards the whole test)."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
