"""A checkpoint that reads further: a method applied, tuned at the new length if asked, written for others to load."""
