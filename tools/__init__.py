"""Help for developers: the parts of `./crucible test`, the search for import circles, a count of the code."""
