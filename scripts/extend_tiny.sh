#!/bin/sh
# Extend the built-in model to four times its trained length and record what it brought: scripts/extend_tiny.sh [DATA]
# YaRN, then all weights tuned at 1,024 tokens, over most of the two novels that tiny was trained on (DATA, default
# ../shared/data, has Project Gutenberg 145 and 1023), with the typography of printed books as in its training; measured
# on Moby Dick, which it never saw (2701). Ten minutes on an idle core; rerun it to resume. A finished run is in
# runs/extend-tiny: remove it to start over. One thread, so that sums round in one order.
set -eu
export OMP_NUM_THREADS=1
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
data=${1:-../shared/data}
out=runs/extend-tiny
if [ ! -f "$out/extend.json" ]; then
    mkdir -p "$out-text"
    for book in middlemarch bleak_house; do
        "$BIN/python" scripts/typographic.py "$data/$book.txt" "$out-text/$book.txt"
    done
    printf 'batch_size = 4\nactivation_checkpointing = false\nstart_char = 30000\n' > "$out.toml"
    "$BIN/ropewalk" extend tune tiny --out "$out" --method yarn --target 1024 \
        --steps 240 --text "$out-text/middlemarch.txt" "$out-text/bleak_house.txt" --lr 1e-3 \
        --validation "$data/moby_dick.txt" --settings "$out.toml"
fi
cp "$out/extend.json" benchmarks/results/extend-tiny.json
cp "$out/extend.png" benchmarks/results/extend-tiny.png
