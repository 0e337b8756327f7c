"""What the reader of a live transformers model is made of; importing one of its modules may import transformers."""
