"""Everything that reads or writes a file of weights, and the tokenizer beside it."""
