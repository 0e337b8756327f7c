"""Facts and warnings about a config and its frequencies, without running the model."""
