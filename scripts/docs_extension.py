"""What the pages say of tuning and of methods beside the tables of docs_records.py, from the same records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]


def interval_cell(found: Record) -> str:
    """A difference in nats per token with its 95 % interval."""
    return f"{found['nats']:+.3f} [{found['ci'][0]:+.3f}, {found['ci'][1]:+.3f}]"


def of_interactions(record: Record) -> str:
    """What the intervals show at last: the positive control, who succeeds, what skipping itself brings."""
    last = {arm: found["beyond"][-1] for arm, found in record["arms"].items()}
    reads = [arm for arm, row in last.items() if row["interaction"]["ci"][1] < 0]
    uses = [arm for arm in reads if last[arm]["tuned_minus_its_crop"]["ci"][1] < 0]
    cheap = [arm for arm in uses if record["arms"][arm]["tuned_minus_plain_within"]["ci"][1] <= 0.05]
    longest = f"{record['lengths'][-1]:,}"
    control = (
        f"The positive control holds: tuned in whole windows of {longest} tokens, it gains from distant ones."
        if "full-length" in uses
        else "The positive control does not hold: even tuning in whole windows is not shown to make this model gain "
        "from distant tokens, so that nothing can be told of short ones."
    )
    contrasts = "; ".join(
        f"`{rows[-1]['of']}` less `{arm}` {interval_cell(rows[-1])}"
        for arm, rows in record["contrasts"].items()
        if arm.startswith("no-skip")
    )
    return (
        f"{control} Interaction below zero, interval and all: {_named(reads)}. Of these, whole windows are read better "
        f"than fresh ones by {_named(uses)}. Of these, at most 0.05 nats are lost within by {_named(cheap)}. What "
        f"skipping itself brings, (full - crop) of an arm less that of its control: {contrasts}."
    )


def _named(arms: Sequence[str]) -> str:
    return ", ".join(f"`{arm}`" for arm in arms) or "none"


def served(name: str) -> tuple[str, str]:
    """Whether a config can say a method, and the engines that can be told it."""
    from ropewalk.errors import RopeError
    from ropewalk.extend.engines import ENGINES, READS_GGUF
    from ropewalk.extend.gguf_rope import gguf_rope
    from ropewalk.extend.hub import hub_rope
    from ropewalk.extend.serve import serve_config
    from ropewalk.methods import METHODS, Reach
    from ropewalk.rope.config import RopeConfig

    method, found = METHODS[name], []
    if method.config is None:
        return "no", "none"
    reach = Reach(256, 1024 if method.extends else 256)
    for engine in ENGINES:
        try:
            told = serve_config("tiny", engine, method=name, target=reach.target if method.extends else None)
            if engine in READS_GGUF:
                rope = method.rope(RopeConfig(64, interleaved=False, max_position_embeddings=256), reach)
                gguf_rope(hub_rope((rope,), name, reach), "llama", name, reach)
        except RopeError:
            continue
        own = any(caveat.rules and len(caveat.engines) == 1 for caveat in told.caveats)
        found.append(f"{engine}\\*" if own else engine)
    return "yes", ", ".join(found)
