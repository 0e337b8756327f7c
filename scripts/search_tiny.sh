#!/bin/sh
# The record of the factor search on `tiny`: searched on two novels at four times its trained length, held against
# every analytic method on a third. About 5 minutes on two cores; stopped, the same command goes on.
set -eu
cd "$(dirname "$0")/.."
data=${ROPEWALK_DATA:-../shared/data}
exec .venv/bin/ropewalk extend tiny --target 1024 --search --budget 200 --search-windows 4 \
  --text "$data/middlemarch.txt" --text "$data/bleak_house.txt" --validation "$data/moby_dick.txt" --windows 16 \
  --search-record benchmarks/results/search-tiny.json "$@"
