"""The decoder, its checkpoints, and generation."""
