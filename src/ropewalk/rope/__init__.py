"""What is rotated by how much: configs, scaling rules, frequencies, tables, pairing."""
