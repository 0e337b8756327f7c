"""The doctor's record as a page that stands alone: tables, sentences and figures made from the JSON document."""
