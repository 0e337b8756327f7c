"""Build models in vLLM with ropewalk's plug-in, in the Python of vLLM's environment; see `plugin.py`.

It reads {"folder": F, "fault": true or false} from standard input, and writes {"lines": [[level, text], ...]} with what
the plug-in logs, and "version" or "error", one JSON object per line. With a fault, rotary layers of every class compute
frequencies that are a tenth too high.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

FAULT = 1.1  # times the right frequencies


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what vLLM prints is no answer
    vllm: Any = importlib.import_module("vllm")
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    current = importlib.import_module("vllm.config").set_current_vllm_config
    worker = importlib.import_module("vllm.v1.worker.gpu_worker")  # the CPU's worker calls its function
    loaders = importlib.import_module("vllm.model_executor.model_loader.utils")
    group = f"file://{tempfile.mkdtemp()}/group"
    layers: Any = importlib.import_module("vllm.model_executor.layers.rotary_embedding")
    state: dict[str, Any] = {"fault": False}

    def keep(record: logging.LogRecord) -> bool:
        state["lines"].append([record.levelname.lower(), record.getMessage()])
        return True

    logging.getLogger("vllm.ropewalk").addFilter(keep)  # vLLM removes handlers

    def with_fault(compute: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: compute(*args, **kwargs) * (FAULT if state["fault"] else 1.0)

    def initialize_model(*args: Any, **kwargs: Any) -> Any:
        model = right(*args, **kwargs)
        for name, buffer in model.named_buffers():  # of transformers' classes, in which vLLM runs some families
            if state["fault"] and name.endswith("inv_freq") and "original" not in name:
                buffer.mul_(FAULT)
        return model

    right, loaders.initialize_model = loaders.initialize_model, initialize_model
    named = [kind for one in vars(layers).values() if isinstance(one, type) for kind in one.__mro__]
    for kind in dict.fromkeys(one for one in named if "_compute_inv_freq" in vars(one)):
        kind._compute_inv_freq = with_fault(vars(kind)["_compute_inv_freq"])  # type: ignore[attr-defined]
    for line in sys.stdin:
        request, answer = json.loads(line), dict[str, Any]()
        state |= {"fault": request["fault"], "lines": answer.setdefault("lines", [])}
        layers._ROPE_DICT.clear()  # the layers of earlier models
        try:
            config = arguments(
                model=request["folder"], skip_tokenizer_init=True, load_format="dummy", dtype="float32",
                enforce_eager=True,
            ).create_engine_config()  # fmt: skip
            with current(config):
                worker.init_worker_distributed_environment(config, 0, group, 0, "gloo")
                loaders.initialize_model(vllm_config=config)
            answer["version"] = vllm.__version__
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
