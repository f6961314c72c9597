"""The lake: names to tables, pinned reads, commits with identity, and what the logs tell afterwards."""
