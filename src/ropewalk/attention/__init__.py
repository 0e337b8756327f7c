"""Attention over queries and keys that are given: masks, rules of scores, and positions that differ by region."""
