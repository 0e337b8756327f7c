"""Measure a model on text: losses and copies of distant tokens, with one job engine and one estimate."""
