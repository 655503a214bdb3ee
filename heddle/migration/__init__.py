"""Whether to move a live trajectory while its tool runs."""
