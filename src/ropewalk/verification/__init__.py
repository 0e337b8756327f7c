"""Determine from a few log-probabilities which rotary embedding an engine applies."""
