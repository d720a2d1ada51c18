"""Runs the fleet's command: ``python -m bench.fleet SPEC.json``."""

import sys

from bench.fleet.fleet_command import main

sys.exit(main())
