"""Commands by subject.

Each command imports what it needs only when it runs, so that help is instant.
"""
