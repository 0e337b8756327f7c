"""Configs, scaling rules, frequencies, tables and pairing of a rotation."""
