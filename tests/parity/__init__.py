"""Parity with transformers, class by class: `make parity` makes the record, tests/parity/test_*.py run a part of it."""
