"""External targets: processes, shell commands and links."""
