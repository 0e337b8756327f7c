"""Turning queries and keys by their positions' angles."""
