"""Sentences of the conformance vectors: the purpose of each kind of case, the bug it detects, and the pairings."""

from __future__ import annotations

PAIRINGS = {
    "halves": "For i in 0 .. rotary_dim/2 - 1: y[i] = x[i] cos(a_i) - x[i + rotary_dim/2] sin(a_i); "
    "y[i + rotary_dim/2] = x[i + rotary_dim/2] cos(a_i) + x[i] sin(a_i).",
    "interleaved": "For i in 0 .. rotary_dim/2 - 1: y[2i] = x[2i] cos(a_i) - x[2i + 1] sin(a_i); "
    "y[2i + 1] = x[2i + 1] cos(a_i) + x[2i] sin(a_i).",
    "halves_of_each_axis": "As halves, separately inside the features of each axis: an axis of n pairs has 2n features "
    "in a row and pairs feature j with j + n of them.",
}
"""The formula of each pairing; a_i = position * inv_freq[i]."""

CASES = {
    "inv_freq": (
        "the frequencies, from the config",
        "a different theta, the scaling rule ignored or applied with a wrong original length, the rotated fraction "
        "ignored",
    ),
    "below_switch": (
        "one token at the last position before the frequencies change with the length",
        "the frequencies for long sequences used for short ones",
    ),
    "above_switch": (
        "one token of a sequence that is long enough for the second frequencies",
        "the switch to the frequencies for long sequences ignored",
    ),
    "cos_sin": (
        "cos and sin of each pair at these positions, without the attention factor",
        "angles formed in bfloat16 or float16, wrong frequencies, a table that ends too early",
    ),
    "prefill": (
        "the rotation of a short prompt: two heads of queries, one of keys",
        "the wrong pairing, the rotated fraction ignored, the attention factor ignored or applied twice, the opposite "
        "direction, wrong frequencies",
    ),
    "decode": (
        "one token at position cache_length, after that many tokens in the cache",
        "a position that is off by one, the prompt's length added again, position 0 for the new token",
    ),
    "chunks": (
        "the same prompt in two chunks, the second after the first: equal to the prefill",
        "positions that restart at 0 in each chunk",
    ),
    "packed": (
        "two documents in one row; positions restart at each entry of cu_seqlens",
        "positions that continue across the boundary of documents",
    ),
    "left_padded": (
        "a batch with padding on the left: positions count only tokens with a mask of 1; the others are not compared",
        "padding counted as tokens",
    ),
    "context_parallel": (
        "two ranks; the sequence is cut into four parts, and rank r has parts r and 3 - r (head-tail, zigzag)",
        "ranks that count from 0, or contiguous shares",
    ),
    "mrope": (
        "(time, height, width) of each token of a prompt with an image and a video, and the keys rotated there",
        "text positions for images, the axes in the wrong order, sections where the pairs alternate or the reverse",
    ),
    "mrope_decode": (
        "the token after a prompt with images: its position is the largest of the prompt + 1, on each axis",
        "decoding continued at the number of tokens",
    ),
}
"""The purpose of each kind of case, and the bug of an engine that fails it."""
