"""Find out which rotary embedding an engine really applies, from outside, by a few log-probabilities."""
