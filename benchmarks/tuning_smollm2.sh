#!/bin/sh
# Does tuning make SmolLM2-135M (trained to 8,192 tokens) read to 16,384? A grid of settings is read on `tiny` and Shakespeare; each arm
# is tuned on Middlemarch under its method, in windows of 8,192 tokens (YaRN's skip to 16,384), and read on Moby-Dick and Bleak
# House. $MODEL is the GGUF (benchmarks/doctor_smollm2.sh fetches it), $ARMS the arms, $STEPS their updates, $WINDOWS what is
# read. Stopped, the same command goes on. Record and figure: benchmarks/results/tuning-smollm2.*.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
ROPEWALK_SMOLLM2=${MODEL:-${ROPEWALK_SMOLLM2:?"name the GGUF: benchmarks/doctor_smollm2.sh fetches it into build/smollm2"}}
export ROPEWALK_SMOLLM2 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
OUT=${OUT:-build/tuning}
"$BIN/python" benchmarks/tuning.py choose --out "$OUT"
for arm in ${ARMS:-yarn-repeats dca-repeats}; do
    "$BIN/python" benchmarks/tuning.py train "$arm" --out "$OUT" --steps "${STEPS:-40}" --lr 4e-4 --rank 16
done
for worker in 0 1; do # one process on each core
    "$BIN/python" benchmarks/tuning.py read --out "$OUT" --windows "${WINDOWS:-8}" --worker "$worker" --workers 2 &
    readers="${readers:-} $!"
done
for reader in $readers; do wait "$reader"; done
"$BIN/python" benchmarks/tuning.py record --out "$OUT"
