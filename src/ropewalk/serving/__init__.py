"""Serving engines: their supported methods, and the commands and files to serve a model under a method."""
