#!/bin/sh
# Does PoSE make `tiny` (trained to 256 tokens) read to 1,024? Six runs of `extend tune` on the two novels that it was trained
# on, each of 60 updates of 2,048 tokens, first the positive control: windows of 1,024 tokens. Then windows of 256 that skip,
# under YaRN, with repeated blocks in 3 of 10 windows; the same without a skip, without YaRN, of plain text, and of plain text
# without a skip. All are read on Moby-Dick, which no run sees, by benchmarks/pose.py. Record and figure:
# benchmarks/results/pose-tiny.*. About 9 minutes of one core; stopped, the same command goes on. Further options go to pose.py
# ($STEPS: updates).
set -eu
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
DATA=${ROPEWALK_DATA:-../shared/data}
OUT=${OUT:-build/pose-tiny}
mkdir -p "$OUT"
for book in middlemarch bleak_house; do # with the typography of printed books, as tiny was trained
    [ -f "$OUT/$book.txt" ] || "$BIN/python" scripts/typographic.py "$DATA/$book.txt" "$OUT/$book.txt"
done
exec "$BIN/python" benchmarks/pose.py tiny --out "$OUT" --record "${RECORD:-benchmarks/results/pose-tiny.json}" \
    --text "$OUT/middlemarch.txt" "$OUT/bleak_house.txt" --validation "$DATA/moby_dick.txt" --target 1024 --lengths 512,1024 \
    --arms full-length,pose,no-skip,no-method,no-far-answers,no-skip-no-far-answers --window 256 \
    --steps "${STEPS:-60}" --batch-size 8 --lr 1e-3 --windows 16 --copy-windows 8 --texts 2 "$@"
