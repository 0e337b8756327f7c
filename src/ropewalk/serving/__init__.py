"""Serving engines: what each can run, and the commands and files that make one serve a model under a method."""
