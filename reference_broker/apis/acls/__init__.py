"""APIs of ACLs."""
