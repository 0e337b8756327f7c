"""Files of weights with their configs and tokenizers, read and written."""
