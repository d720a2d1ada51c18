"""What developers use: the parts of `./crucible test`, import circles, a count of the code."""
