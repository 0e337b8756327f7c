"""What a measurement needs of a model, and the adapters that give it."""
