"""Commands by the room that they belong to; those that need several rooms are in ``runs``.

Each command imports what it needs only when it runs, so that help is instant.
"""
