"""The model and the text in the package."""
