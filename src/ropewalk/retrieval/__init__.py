"""Measure retrieval from long inputs: hidden numbers and pass keys, made offline, scored with intervals."""
