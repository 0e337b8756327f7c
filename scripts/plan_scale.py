"""Write the tables of docs/scale.md: what a rank holds and sends on meshes of 8 to 4,096, planned without any of them.

    python scripts/plan_scale.py [--check]

Run by `make plan`. It takes no memory: see `ropewalk.distributed.plan`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ropewalk.distributed.plan import LLAMA_3, RankPlan, plan_rank

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- written by scripts/plan_scale.py -->\n", "<!-- end -->\n"
CONTEXTS = {"128k": 131_072, "1M": 1_048_576}
MESHES = {
    "128k": [(1, 8, 1), (1, 8, 8), (8, 8, 8), (64, 8, 8)],
    "1M": [(1, 8, 1), (1, 8, 8), (1, 64, 8), (8, 64, 8)],
}
"""(dp, cp, tp) of 8, 64, 512 and 4,096 ranks."""
CARD = 80e9  # bytes of the card that is asked after


def tables() -> str:
    """One table for each model and context."""
    parts = []
    for model, config in LLAMA_3.items():
        for context, tokens in CONTEXTS.items():
            rows = [row(plan_rank(config, tokens, dp=dp, cp=cp, tp=tp)) for dp, cp, tp in MESHES[context]]
            parts += [f"### {model}, {context} tokens\n", HEADS, *rows, ""]
    return "\n".join(parts)


HEADS = (
    "| ranks | dp x cp x tp | tokens of a rank | parameters | gradients | AdamW | gathered parameters | activations | "
    "gathered keys, values | in all | 80 GB card | sent: FSDP | sent: tp | sent: cp |\n" + "|---:" * 14 + "|"
)


def row(plan: RankPlan) -> str:
    """One mesh, in GiB."""
    sizes = [plan.parameters, plan.gradients, plan.states, plan.unsharded, plan.activations, plan.keys_and_values]
    sent = [plan.traffic[name] for name in ("fsdp", "tp", "cp")]
    cells = [f"{plan.ranks:,}", f"{plan.dp} x {plan.cp} x {plan.tp}", f"{plan.tokens // plan.cp:,}"]
    cells += [gib(size) for size in (*sizes, plan.total)]
    cells += ["fits" if plan.total < CARD else "too small", *map(gib, sent)]
    return "| " + " | ".join(cells) + " |"


def gib(size: int) -> str:
    """Bytes in GiB."""
    return f"{size / 2**30:,.2f}" if size < 100 * 2**30 else f"{size / 2**30:,.0f}"


def main() -> int:
    """Write the page's tables; with --check say whether they are these, and change nothing."""
    began = time.perf_counter()
    before = PAGE.read_text(encoding="utf-8")
    head, _, rest = before.partition(BEGIN)
    after = head + BEGIN + "\n" + tables() + "\n" + END + rest.partition(END)[2]
    print(f"planned in {time.perf_counter() - began:.1f} s")
    if "--check" in sys.argv:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
