#!/bin/sh
# Train the built-in model `tiny` and put it into the package: scripts/make_tiny.sh [OPTION of ropewalk train]...
# DATA (default ../shared/data) holds middlemarch.txt and bleak_house.txt (or .txt.gz): Project Gutenberg 145 and 1023,
# header and trailer removed; scripts/typographic.py gives them the quotes and dashes of printed books. Moby Dick, the
# doctor's default text, is kept out. Options override those below, as --device cuda --steps 100. With OUT, the run's
# folder, nothing is put into the package. PYTHON: the interpreter. Stopped, the same command goes on. One thread, so that
# sums round in one order: equal versions of ropewalk and torch on the same processor give the same bits.
set -eu
cd "$(dirname "$0")/.."
data=${DATA:-../shared/data} run=${OUT:-runs/tiny} python=${PYTHON:-.venv/bin/python}
mkdir -p "$run-text"
for book in middlemarch bleak_house; do
  file=$data/$book.txt
  [ -f "$file" ] || file=$file.gz
  "$python" scripts/typographic.py "$file" "$run-text/$book.txt"
done
OMP_NUM_THREADS=1 PYTHONPATH=src "$python" -m ropewalk train --text "$run-text/middlemarch.txt" "$run-text/bleak_house.txt" \
  --out "$run" --size tiny --vocab-size 4096 --seq-len 256 --repeat-share 0.2 --dropout 0.1 --batch-size 8 --steps 2800 \
  --lr 3e-3 --final-lr 0.05 --validation-windows 24 --validation-length 1024 --validate-every 200 --checkpoint-every 200 \
  --seed 0 "$@"
[ -z "${OUT:-}" ] || exit 0
into=src/ropewalk/builtin/tiny
mkdir -p "$into"
for file in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json training-log.jsonl; do
  cp "$run/$file" "$into/$file"
done
chmod 644 "$into"/*
