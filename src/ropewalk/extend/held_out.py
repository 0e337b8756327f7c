"""Check that the text to measure on does not occur in the texts to tune on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.models.prompts import Tokenizer

RUN = 32  # tokens; two novels share none, three in ten thousand of bytes at 24
LARGEST = 0.05  # the share above which a text counts as seen: less than one window of sixteen


def seen_share(tokens: Sequence[int], texts: Iterable[Sequence[int]]) -> float:
    """Return the share of a text's runs of 32 tokens, from 0 to 1, that occur in one of `texts`.

    **Arguments:**
    - `tokens`: token ids of the text; if there are fewer than 32, the only run contains all of them.
    - `texts`: token ids of the other texts, from the same tokenizer.

    >>> text = list(range(100))
    >>> seen_share(range(40), [text]), seen_share(range(84, 124), [text]), seen_share([], [text])
    (1.0, 0.0, 0.0)
    """
    run = min(RUN, len(tokens))
    if not run:
        return 0.0
    hashes = _hashes(np.asarray(tokens), run)
    seen = np.zeros(len(hashes), dtype=bool)
    for text in texts:
        seen |= np.isin(hashes, _hashes(np.asarray(text), run))
    return float(seen.mean())


def _hashes(ids: npt.NDArray[np.integer], run: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each run of `run` consecutive tokens."""
    places = max(len(ids) - run + 1, 0)
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(29)
    hashes = np.zeros(places, dtype=np.uint64)
    for index in range(run):
        hashes = hashes * np.uint64(0xD1342543DE82EF95) + values[index : index + places]
    return hashes


def refuse_seen(held_out: tuple[str, str], texts: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> None:
    """Raise `RopeError` if more than a twentieth of the held-out text occurs in the texts to tune on.

    - `held_out`, `texts`: (name, contents).
    """
    name, contents = held_out
    tokens = tokenizer.encode(contents)
    share = seen_share(tokens, (tokenizer.encode(text) for _, text in texts))
    if share > LARGEST:
        raise RopeError(
            "extend: the text to measure on shares passages with the texts to tune on.",
            facts={
                "text": [name for name, _ in texts],
                "validation": name,
                f"share of its {min(RUN, len(tokens))}-token runs in them": round(share, 4),
                "largest allowed": LARGEST,
            },
            cure="Pass a different text as --validation.",
        )
