"""Measure whether a model uses far tokens: the copy test, with a control within the trained length."""
