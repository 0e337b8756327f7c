#!/bin/sh
# Train the built-in model `tiny` and put it into the package: scripts/make_tiny.sh [OPTION of ropewalk train]...
# DATA (default ../shared/data) holds middlemarch.txt and bleak_house.txt (or .txt.gz): Project Gutenberg 145 and 1023,
# header and trailer removed; scripts/typographic.py gives them the quotes and dashes of printed books. Moby-Dick, the
# doctor's default text, is kept out. The first 1,200 updates see only repeated random tokens, from which it learns to
# copy. Options override those below, as --device cuda --steps 100. With OUT, the run's folder, nothing is put into the
# package. PYTHON: the interpreter. To resume, rerun it.
# 24.6M tokens: about 3 minutes on an H100, about 2 hours on one core at 3,400 tokens/s (an estimate from the former
# model's run). The weights in the package are those of one H100 (2026-11-22, torch 2.11.0+cu130, --device cuda); a run on
# a CPU differs from them in its bits. One thread, so that sums round in one order: on a CPU, equal versions of ropewalk
# and torch on the same processor give the same bits.
set -eu
cd "$(dirname "$0")/.."
data=${DATA:-../shared/data} run=${OUT:-runs/tiny} python=${PYTHON:-.venv/bin/python}
mkdir -p "$run-text"
for book in middlemarch bleak_house; do
  file=$data/$book.txt
  [ -f "$file" ] || file=$file.gz
  "$python" scripts/typographic.py "$file" "$run-text/$book.txt"
done
cat > "$run-text/settings.toml" <<END
copy_warmup = 1200
repeat_share = 0.2
dropout = 0.1
final_lr = 0.05
validation_windows = 24
validation_length = 1024
validate_every = 500
checkpoint_every = 1000
precision = "float32"
END
OMP_NUM_THREADS=1 PYTHONPATH=src "$python" -m ropewalk train --text "$run-text/middlemarch.txt" "$run-text/bleak_house.txt" \
  --out "$run" --size tiny --vocab-size 4096 --seq-len 256 --batch-size 32 --steps 3000 --lr 2e-3 --device cpu --seed 0 \
  --settings "$run-text/settings.toml" "$@"
[ -z "${OUT:-}" ] || exit 0
into=src/ropewalk/builtin/tiny
mkdir -p "$into"
for file in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json training-log.jsonl; do
  cp "$run/$file" "$into/$file"
done
chmod 644 "$into"/*
