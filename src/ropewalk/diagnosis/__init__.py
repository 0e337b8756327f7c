"""How far a model reads: the measurement, and what is concluded from it."""
