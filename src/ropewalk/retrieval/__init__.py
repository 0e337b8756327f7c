"""Retrieval from long inputs: passkey and RULER's kinds of tasks, made offline, scored with intervals."""
