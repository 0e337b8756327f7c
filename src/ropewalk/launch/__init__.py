"""Processes that a launcher has started together: which one this is, and what they agree on and exchange."""
