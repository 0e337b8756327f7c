"""Rotation for other training frameworks; each module needs its framework, but for `titan_rope`."""
