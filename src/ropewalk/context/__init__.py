"""How far a context reaches and what would extend it: the audit, the lint, the measurement, the recommendation."""
