"""What several test files share: comparisons, networks, traces and checkpoints."""
