"""Which rotary embedding an engine really applies: asked from outside, by a few log-probabilities."""
