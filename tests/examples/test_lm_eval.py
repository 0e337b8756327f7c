"""The recipe of docs/extending.md: EleutherAI's harness scores an attached model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from ropewalk.checkpoints.sources import find

HOWTO = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.mark.thorough
def test_the_harness_scores_the_attached_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's code gives the harness's log-likelihood of a text that is longer than the trained length."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: it brings datasets, pandas and pyarrow")
    from lm_eval.api.instance import Instance

    page = HOWTO.read_text(encoding="utf-8")
    code = re.findall(r"```py\n(.*?)```", page[page.index("## Benchmarks of others") :], re.DOTALL)[0]
    scored: dict[str, Any] = {}

    def evaluate(model: Any, tasks: Any) -> dict[str, Any]:
        context = " ".join(str(number) for number in range(200))
        scored["of"] = context
        request = Instance(request_type="loglikelihood", doc={}, arguments=(context, " 7"), idx=0)
        scored["found"] = model.loglikelihood([request])[0][0]
        return {"results": tasks}

    monkeypatch.setattr(lm_eval, "simple_evaluate", evaluate)
    names: dict[str, Any] = {}
    exec(code.replace('"folder/"', repr(str(find("tiny")))), names)
    tokenizer = AutoTokenizer.from_pretrained(find("tiny"))
    whole = tokenizer(scored["of"] + " 7", return_tensors="pt")["input_ids"]
    start = len(tokenizer(scored["of"])["input_ids"])
    assert start > 256

    def log_likelihood() -> float:
        with torch.no_grad():
            rows = names["model"](whole).logits[0].double().log_softmax(-1)
        return float(rows[torch.arange(start - 1, whole.shape[1] - 1), whole[0, start:]].sum())

    assert scored["found"] == pytest.approx(log_likelihood(), abs=0.05)  # the weights, and so the harness, are bfloat16
    names["handle"].detach()
    assert abs(scored["found"] - log_likelihood()) > 0.2
