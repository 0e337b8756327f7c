"""Read and write files of weights with their configs and tokenizers."""
