"""The explorer: one HTML page of interactive pictures about rotary position embeddings, without any request.

`make web` builds page.html from web/, and it ships with the package; `data` computes the numbers that it shows, and
`page` puts them in.
"""
