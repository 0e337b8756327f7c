"""Run ropewalk's plug-in in the real vLLM, for each model of the matrix that vLLM loads: right, and with a fault.

python benchmarks/engines/plugin.py    # resumes

vLLM builds each model twice, with the weights of no checkpoint; the plug-in has to say one line each time, and to find
the fault (`layer_ropes.py plugin`). The record is benchmarks/results/vllm-plugin.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from engines import layer_ropes
from engines.models import Models
from engines.runners import ENVIRONMENTS

from ropewalk.atomic_io import write_json
from ropewalk.verification.adapters import VARIABLES

PYTHON = ENVIRONMENTS / "vllm" / "bin" / "python"
RESULTS = ROOT / "benchmarks" / "results"
RECORD = RESULTS / "vllm-plugin.json"
Request = dict[str, Any]


def with_plugin(place: Path) -> dict[str, str]:
    """Return the variables of a vLLM on the CPU that finds ropewalk's plug-in; `place`: an empty folder."""
    info = place / "ropewalk-0.dist-info"
    info.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        (info / name).write_text(distribution("ropewalk").read_text(name) or "", encoding="utf-8")
    own = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{place}", "ROPEWALK_VLLM_CHECK": "log",
           "VLLM_LOGGING_LEVEL": "INFO"}  # fmt: skip
    return {**os.environ, "HF_HUB_OFFLINE": "1", **VARIABLES["vllm"], **own}


def config_of(family: str, block: str) -> Request:
    """Return the content of a model's config.json, all that vLLM needs to build it."""
    config = Models(family, Path()).config(block)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]]
    return json.loads(config.to_json_string())


def answers(requests: list[Request], place: Path, mode: str = "log") -> Iterator[tuple[Request, Request]]:
    """Yield each request with its answer; what fails as a later model of a process is tried in a new one."""
    environment = {**with_plugin(place / "plug-in"), "ROPEWALK_VLLM_CHECK": mode}
    while requests:
        with (place / "log").open("w") as log, subprocess.Popen(
            [PYTHON, Path(layer_ropes.__file__).resolve(), "plugin"], env=environment, cwd=place, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        ) as process:  # fmt: skip
            process.stdout.readline()  # the version
            for number, request in enumerate(requests):
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline() or '{"error": "vLLM ended"}')
                if "error" in answer and number and mode == "log":
                    break
                yield request, answer
            else:
                number += 1
            process.kill()
        requests = requests[number:]


def main() -> None:
    """Run the plug-in over the models of the matrix."""
    if not PYTHON.is_file():
        print("SKIPPED vllm: no environment; run make engines ENGINES=vllm")
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {"models": {}}
    cells = json.loads((RESULTS / "engines.json").read_text(encoding="utf-8"))["cells"]
    loaded = [cell for cell in cells if (cell["engine"], cell["spelling"]) == ("vllm", "rope_parameters")
              and cell["outcome"] != "not loaded"]  # fmt: skip
    models = {f"{cell['family']}: {cell['block']}": (cell["family"], cell["block"]) for cell in loaded}
    requests = [
        {"key": key, "config": config_of(*model), "fault": fault}
        for key, model in models.items() if key not in record["models"] for fault in (False, True)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        found: dict[bool, Any] = {}
        for request, answer in answers(requests, Path(name)):
            found[request["fault"]] = answer
            print(request["key"], "with a fault" if request["fault"] else "", answer, flush=True)
            if request["fault"]:
                record |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "version": answer.get("version")}
                record["models"][request["key"]] = {
                    name: found[fault].get("error") or found[fault]["lines"]
                    for name, fault in (("right", False), ("fault", True))
                }
                write_json(RECORD, record)


if __name__ == "__main__":
    main()
