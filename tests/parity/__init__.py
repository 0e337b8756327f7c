"""Parity with transformers, class by class and model by model.

`make parity` makes the record; test_parity.py runs a part of it.
"""
