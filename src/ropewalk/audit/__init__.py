"""What a config and its frequencies say without running the model."""
