"""The version, which every subpackage may import."""

__version__ = "0.2.0"
