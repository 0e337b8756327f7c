"""Start llama.cpp's server (package xllamacpp) with a .gguf file, print its address, and wait until it is stopped.

    python examples/verify/serve_gguf.py model.gguf --option rope_freq_base=1e5

`--option` sets fields of llama.cpp's parameters, here to show what a wrong setting looks like to `ropewalk verify`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress

from ropewalk.checkpoints.gguf import gguf_tokenizer
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.verification.adapters import llama_cpp_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=NUMBER")
    given = parser.parse_args()
    options = {name: float(value) for name, value in (one.split("=", 1) for one in given.option)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tokenizer = gguf_tokenizer(GGUFFile(given.model))
    with llama_cpp_server(given.model, tokenizer, context=given.context, options=options) as server:
        sys.stdout.write(f"{server.root}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
