"""Record the ropes that vLLM, SGLang and mlx-lm compute from configs: no weights, no server, their own model classes.

python benchmarks/engines/tables.py --engines vllm,sglang,mlx

It writes benchmarks/results/engine-tables.json, the cases of recorded.py, and for SGLang, which does not run on a CPU,
the cells of the matrix: the ropes of each family and block compared with transformers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from engines import layer_ropes
from engines.matrix import Cell, cells_of, read_record, write_record
from engines.models import BLOCKS, CONTEXT, FAMILIES, PROMPT, SHORT, TABLES_ONLY, TRAINED, Models
from engines.recorded import FILE, Case, Measured, Recorded, cases, completed, content_of, of_layer, planned
from engines.runners import ENVIRONMENTS

from ropewalk.atomic_io import write_whole
from ropewalk.audit.causes import cause_of
from ropewalk.audit.faults import hypotheses
from ropewalk.rope.model_ropes import ModelRopes

Record = dict[str, Any]
WITH_SECTIONS = ("qwen2_vl_7b", "qwen2_5_vl_7b", "qwen3_vl_4b", "qwen3_5_9b")  # published configs


def measured(engine: str, wanted: Sequence[Case]) -> tuple[str, list[Record]]:
    """Return the engine's version, and its answer to each case."""
    command = [ENVIRONMENTS / engine / "bin" / "python", layer_ropes.__file__, engine]
    questions = "".join(json.dumps({"config": case.config, "over": case.over}) + "\n" for case in wanted)
    ended = subprocess.run(command, input=questions, capture_output=True, text=True, check=False)
    version, *answers = map(json.loads, ended.stdout.splitlines())
    return version["version"], answers


def write(engines: Record, found: dict[str, Record]) -> None:
    """Write the file: each rope once, and a line for each case."""
    numbers: dict[str, int] = {}
    rows = []
    for key, answer in sorted(found.items()):
        if "layers" in answer:
            texts = {int(layer): json.dumps(answer["ropes"][rope]) for layer, rope in answer["layers"].items()}
            of_layers = {layer: numbers.setdefault(text, len(numbers)) for layer, text in texts.items()}
            layers = [of_layers.get(layer) for layer in range(max(of_layers, default=-1) + 1)]
            answer = {"length": answer["length"], "layers": layers}
        rows.append(f"{json.dumps(key)}: {json.dumps(answer)}")
    head, between = f'{{"engines": {json.dumps(engines)},\n"ropes": [\n', ",\n"
    write_whole(FILE, f'{head}{between.join(numbers)}\n],\n"cases": {{\n{between.join(rows)}\n}}}}\n')


def cell(case: tuple[str, str], ropes: ModelRopes, answer: Record, version: str) -> Cell:
    """Return the cell of a family and block from the ropes of the engine's layers."""
    about: Record = {"engine": "sglang", "family": case[0], "block": case[1], "spelling": "rope_parameters",
                     "version": version}  # fmt: skip
    if "error" in answer or not answer["layers"]:
        reason = answer.get("error", "the engine takes the class of transformers")
        return Cell(**about, outcome="not loaded", name=reason[:160])
    layers = {int(layer): Measured(**answer["ropes"][rope]) for layer, rope in answer["layers"].items()}
    types = [str(label) for label in ropes.labels] if ropes.numbered else []
    length = SHORT if case[1] == "longrope, short" else PROMPT
    longest = min(one.long[3] if one.long else one.rows or CONTEXT for one in layers.values())
    if longest < CONTEXT:
        return Cell(**about, outcome="named", name=f"a table of {longest} positions", first=longest)
    for fault in hypotheses(ropes, trained=TRAINED):
        if Recorded(layers, types=types).has(fault.positions, length):
            name = "" if fault.name == "as expected" else fault.name
            return Cell(**about, outcome="named" if name else "equal", name=name)
    for layer, one in layers.items():
        own = of_layer(ropes, layer, types)
        cause = None if own is None else cause_of(one.inv_freq, own, ropes, 1e-5)
        if cause is not None:
            words = "no scaling" if cause.words == "pi 1 (linear)" else cause.words  # every pair rotates
            return Cell(**about, outcome="named", name=words)
    return Cell(**about, outcome="unknown", name="no rope of the catalogue")


def matrix(version: str, begun: float) -> None:
    """Replace SGLang's cells of the matrix's record."""
    wanted, configs = list[Case](), dict[tuple[str, str], ModelRopes]()
    with tempfile.TemporaryDirectory() as place:
        for family in FAMILIES:
            models = Models(family, Path(place))
            for block in (*BLOCKS, *TABLES_ONLY):
                try:
                    config = models.config(block)
                    ropes = None if config is None else ModelRopes.from_hf(config)
                except Exception:  # each class raises its own for a rule that it does not support
                    continue
                if ropes is not None and "window" not in block:
                    wanted.append(Case("sglang", completed(json.loads(config.to_json_string()))))
                    configs[family, block] = ropes
    for name in WITH_SECTIONS:
        for block in ("default", "yarn"):
            case = Case("sglang", content_of(name)) if block == "default" else planned("sglang", name, "yarn")[0]
            wanted.append(case)
            configs[case.config["model_type"], f"M-RoPE sections, {block}"] = ModelRopes.from_hf(case.config)
    _, answers = measured("sglang", wanted)
    record = read_record()
    cells = {key: one for key, one in cells_of(record).items() if one.engine != "sglang"}
    found = (cell(*of, answer, version) for of, answer in zip(configs.items(), answers, strict=True))
    cells |= {one.key: one for one in found}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    record["engines"]["sglang"] = {"version": version, "date": date, "seconds": round(time.monotonic() - begun, 1)}
    write_record(record, cells)


def main() -> None:
    """Record the configs of each engine that are not recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="vllm,sglang,mlx")
    parser.add_argument("--again", action="store_true", help="also the configs that are recorded")
    arguments = parser.parse_args()
    again, chosen = arguments.again, [one for one in arguments.engines.split(",") if one in layer_ropes.PACKAGES]
    wanted = {case.key: case for case in cases()}
    saved = json.loads(FILE.read_text()) if FILE.is_file() else {"engines": {}, "ropes": [], "cases": {}}
    found = {}
    for key, answer in saved["cases"].items():
        if key in wanted and not (again and wanted[key].engine in chosen):
            layers = {n: rope for n, rope in enumerate(answer.get("layers", ())) if rope is not None}
            found[key] = {**answer, "layers": layers, "ropes": saved["ropes"]} if "layers" in answer else answer
    for engine in chosen:
        if not (ENVIRONMENTS / engine / "bin" / "python").is_file():
            print(f"SKIPPED {engine}: no environment; run make engines ENGINES={engine}")
            continue
        begun = time.monotonic()
        of_engine = [case for case in wanted.values() if case.engine == engine and case.key not in found]
        version, answers = measured(engine, of_engine)
        if not again and version != saved["engines"].get(engine, version):
            parser.error(f"{engine} {version} is another version than that of the record: pass --again")
        found |= {case.key: answer for case, answer in zip(of_engine, answers, strict=True)}
        saved["engines"][engine] = version
        write(saved["engines"], found)
        if engine == "sglang":
            matrix(version, begun)
        print(f"{engine} {version}: {len(of_engine)} configs, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
