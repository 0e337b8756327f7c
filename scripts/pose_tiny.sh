#!/bin/sh
# Does PoSE make `tiny` (trained to 256 tokens) read further? Three runs of `extend tune` on the same two novels with the same
# updates, to 1,024 tokens under YaRN in windows of 256: positions that skip, the same without a skip, and skips in plain text
# without repeated blocks. Each is measured before and after, beside crop, on Moby-Dick, which no run sees. The record is
# benchmarks/results/pose-tiny.json. Stopped, the same command goes on. About ten minutes of two cores.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
DATA=${ROPEWALK_DATA:-../shared/data}
OUT=${OUT:-build/pose-tiny}
mkdir -p "$OUT"
for book in middlemarch bleak_house; do # with the typography of printed books, as tiny was trained
    [ -f "$OUT/$book.txt" ] || "$BIN/python" scripts/typographic.py "$DATA/$book.txt" "$OUT/$book.txt"
done
tune() { # name, options
    name=$1
    shift
    [ -f "$OUT/$name/extend.json" ] || "$BIN/ropewalk" extend tune tiny --out "$OUT/$name" --target 1024 --method yarn \
        --window 256 --steps "${STEPS:-400}" --batch-size 8 --lr 1e-4 --text "$OUT/middlemarch.txt" "$OUT/bleak_house.txt" \
        --validation "$DATA/moby_dick.txt" --start-char 30000 --windows 32 "$@"
}
tune skip --repeat-share 0.3
tune no-skip --repeat-share 0.3 --skip-target 256
tune no-repeats
"$BIN/python" scripts/pose_record.py "$OUT" benchmarks/results/pose-tiny.json
