"""The model as measuring and writing need it, and the text: transformers, our own decoder, files of text."""
