"""APIs of the metadata quorum."""
