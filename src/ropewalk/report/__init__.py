"""Pages in one file: the doctor's report, made from its JSON document, and the explorer."""
