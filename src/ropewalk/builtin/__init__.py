"""The packaged model and text."""
