#!/bin/sh
# Does PoSE make SmolLM2-135M (trained to 8,192 tokens) read to 32,768? Runs of `extend tune` under YaRN on two novels, in windows
# of 2,048 tokens whose positions skip, with repeated blocks in 3 of 10 windows, and controls on the same data and updates. All
# are read on Moby-Dick and on Shakespeare, which no run sees, by benchmarks/pose.py. Low-rank adapters and norms are trained,
# under bfloat16 autocast; losses, copying and retrieval are measured in bfloat16.
#
#   benchmarks/pose_smollm2.sh first   150 windows of 2,048 tokens; 15 of 8,192, and these without skips, of plain text and
#                                      without the method. Losses on 2 windows of 32,768 tokens of each text, retrieval at
#                                      that length and at 16,384 (beside methods that need no tuning)
#   benchmarks/pose_smollm2.sh         every arm but the one at full length, 450 updates of two windows, 6 windows to read
#                                      and the copy test as well: an estimate of three hours for each of nine arms
#
# $MODEL is the GGUF (benchmarks/doctor_smollm2.sh fetches it). Stopped, the same command goes on; after each arm record and
# figure are written: benchmarks/results/pose-smollm2-*. Further options go to pose.py; $STEPS: updates.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MODEL=${MODEL:-${ROPEWALK_SMOLLM2:?"name the GGUF: benchmarks/doctor_smollm2.sh fetches it into build/smollm2"}}
DATA=${ROPEWALK_DATA:-../shared/data}
OUT=${OUT:-build/pose-smollm2}
pose() { # name, options
    name=$1
    shift
    mkdir -p "$OUT/$name"
    exec "$BIN/python" benchmarks/pose.py "$MODEL" --out "$OUT/$name" --record "${RECORD:-benchmarks/results/$name.json}" \
        --text "$DATA/middlemarch.txt" "$DATA/bleak_house.txt" --validation "$DATA/moby_dick.txt" "$DATA/tinyshakespeare.txt" \
        --target 32768 --window 2048 --train lora+norms --rank 32 --lr 4e-4 --precision bfloat16 --dtype bfloat16 \
        --block 2048 --checkpoint-every 20 "$@"
}
LONGER=trained-length,trained-length-no-skip,trained-length-no-far-answers,trained-length-no-method
if [ "${1:-}" = first ]; then
    shift
    pose pose-smollm2-first --arms "pose,$LONGER" --lengths 16384,32768 --steps "${STEPS:-150}" --batch-size 1 \
        --windows 2 --copy-windows 0 --texts 1 --zero-shot lampe,dca,jet-long "$@"
else
    pose pose-smollm2 --arms "pose,$LONGER,no-skip,no-far-answers,no-skip-no-far-answers,no-method" --lengths 16384,32768 \
        --steps "${STEPS:-450}" --batch-size 2 --windows 6 --copy-windows 3 --texts 2 --zero-shot dca "$@"
fi
