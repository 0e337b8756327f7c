#!/bin/sh
# Train the learned table of positions that `rw.figures.tables` shows: scripts/make_learned_table.sh
# A small decoder with learned absolute positions on the packaged Moby-Dick, then its table alone, in float16, with how it
# came about. About a quarter of an hour on one core; to resume, rerun the command. One thread: sums are rounded
# in one order.
set -eu
cd "$(dirname "$0")/.."
mkdir -p runs
gzip -dc src/ropewalk/builtin/text/moby_dick.txt.gz > runs/moby_dick.txt
printf 'validate_every = 250\ncheckpoint_every = 250\ndtype = "float32"\n' > runs/learned.toml
OMP_NUM_THREADS=1 .venv/bin/ropewalk train --text runs/moby_dick.txt --out runs/learned --encoding learned \
  --size nano --vocab-size 2048 --seq-len 256 --batch-size 16 --steps 1500 --lr 3e-3 --seed 0 \
  --settings runs/learned.toml
.venv/bin/python scripts/extract_learned_table.py runs/learned src/ropewalk/figures/data/learned_table.npz
