"""Rows of `crucible bench` by subject: how each is measured, compared, stored and drawn."""
