"""llama.cpp as a contender of `forward.py`: the prompt processing of some tokens, by `xllamacpp`.

It imports neither torch nor numpy, whose memory would count. What to do is a JSON object as the only argument; the
last line printed holds the seconds of the prompt as llama.cpp counts them, the likeliest next tokens with their
log-probabilities, and the process's largest resident memory in bytes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PROBABLE = 20  # next tokens whose log-probability is compared


def main() -> None:
    """Load, process the prompt once for warmth with its first tokens and once in full, print."""
    import xllamacpp  # type: ignore[import-not-found]

    task: dict[str, Any] = json.loads(sys.argv[1])
    ids: list[int] = json.loads(Path(task["ids"]).read_text())[: task["tokens"]]
    params = xllamacpp.CommonParams()
    params.model.path = task["gguf"]
    params.n_ctx, params.n_parallel, params.n_gpu_layers = len(ids) + 256, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = task["threads"]
    server = xllamacpp.Server(params)
    read(server, ids[:256])
    found = read(server, ids)
    content = found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    if found["timings"]["prompt_n"] != len(ids):
        sys.exit(f"it processed {found['timings']['prompt_n']} of {len(ids)} tokens")
    row = {
        "seconds": [found["timings"]["prompt_ms"] / 1e3],
        "log_probs": {str(one["id"]): one["logprob"] for one in content},
        "peak_bytes": peak_resident(),
    }
    print(json.dumps(row), flush=True)


def peak_resident() -> int:
    """Return the largest resident memory of this process in bytes; `ru_maxrss` would begin at the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def read(server: Any, ids: list[int]) -> dict[str, Any]:
    """Process a prompt and predict one token."""
    replies: list[dict[str, Any]] = []

    def add(reply: dict[str, Any]) -> bool:
        replies.append(reply)
        return False

    asked = {"prompt": ids, "n_predict": 1, "n_probs": PROBABLE, "cache_prompt": False, "temperature": 0.0}
    server.handle_completions(asked, add)
    if not replies or "choices" not in replies[-1]:
        sys.exit(f"no completion: {replies}")
    return replies[-1]


if __name__ == "__main__":
    main()
