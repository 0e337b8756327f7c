"""Measure a model on texts: losses by position, use of far tokens, and retrieval."""
