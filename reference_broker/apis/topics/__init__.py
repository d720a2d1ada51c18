"""APIs that create, change and delete topics."""
