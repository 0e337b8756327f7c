"""The bounds against records: which pass, which fail, which were not measured."""

from __future__ import annotations

from typing import Any

from ropewalk.bench.rows import CPU_ROWS, CUDA_ROWS, PEERS, TimingRow, judge
from ropewalk.bench.summary import copy_bandwidths, left_out, shares


def record(kind: str = "sweep", dtype: str = "bfloat16", tokens: int = 64, **medians: float) -> dict[str, Any]:
    names = {"ours": "ropewalk, new output", "given": "ropewalk, given output", "jax": "jax.jit"}
    times = {names.get(name, name): {"p20": p50, "p50": p50, "p80": p50} for name, p50 in medians.items()}
    return {"kind": kind, "dtype": dtype, "tokens": tokens, "case": f"{dtype} {tokens}", "bytes": 1000 * tokens,
            "microseconds": times, "skipped": {}}  # fmt: skip


def test_a_ratio_of_medians_against_its_bound() -> None:
    """At the bound it holds, above it does not; another dtype or kind is another matter."""
    row = TimingRow("sweep", "bfloat16", "ropewalk, new output", ("copy",), 0.9)
    holds, fails, missing = (
        judge([row], records)[0]
        for records in (
            [record(ours=9.0, copy=10.0)],
            [record(ours=9.01, copy=10.0)],
            [record(dtype="float32", ours=1.0, copy=10.0), record(kind="host", ours=1.0, copy=10.0)],
        )
    )
    assert (holds.value, holds.holds, holds.where) == (0.9, True, "bfloat16 64")
    assert (fails.value, fails.holds) == (0.901, False)
    assert (missing.value, missing.holds) == (None, None)


def test_the_worst_size_counts_from_the_least_tokens() -> None:
    """Below `least` the bound does not hold, and is not asked for."""
    row = TimingRow("sweep", "bfloat16", "ropewalk, new output", ("copy",), 1.0, least=256)
    records = [record(tokens=64, ours=9.0, copy=1.0), *(record(tokens=n, ours=n / 512, copy=1.0) for n in (256, 512))]
    assert judge([row], records)[0].value == 1.0
    assert judge([row], records)[0].where == "bfloat16 512"


def test_every_peer_is_neither_the_copy_nor_ours() -> None:
    """The fastest of the others."""
    row = TimingRow("sweep", "bfloat16", "ropewalk, new output", PEERS, 1.0)
    assert judge([row], [record(ours=6.0, given=1.0, copy=2.0, clone=2.0, jax=5.0, transformers=50.0)])[0].value == 1.2
    assert judge([row], [record(ours=6.0, copy=2.0)])[0].holds is None


def test_an_absolute_bound() -> None:
    """Microseconds, where there is nothing to compare with."""
    row = TimingRow("host", "bfloat16", "ropewalk, new output", (), 15.0)
    assert judge([row], [record(kind="host", ours=14.2)])[0].value == 14.2
    assert judge([row], [record(kind="host", ours=15.2)])[0].holds is False


def test_rows_have_names_of_their_own() -> None:
    """So that a table of them can be read."""
    for rows in (CPU_ROWS, CUDA_ROWS):
        assert len({(row.name, row.against) for row in rows}) == len(rows)


def test_shares_are_the_copy_over_each() -> None:
    """By dtype, contender and tokens, in order; other kinds of record are no part of it."""
    records = [{"kind": "gate"}, record(tokens=256, ours=5.0, copy=10.0), record(tokens=64, ours=4.0, copy=2.0),
               record(kind="one tensor", ours=1.0, copy=1.0)]  # fmt: skip
    assert shares(records) == {"bfloat16": {"ropewalk, new output": [(64, 0.5), (256, 2.0)]}}
    assert copy_bandwidths(records) == {"bfloat16": 2 * 256_000 / 10.0 * 1e6}


def test_who_was_left_out_and_why() -> None:
    """Once for each reason."""
    records = [{**record(tokens=n), "skipped": {"onnxruntime": "no bfloat16"}} for n in (64, 256)]
    assert left_out(records) == {"onnxruntime": ["bfloat16: no bfloat16"]}
