#!/bin/sh
# Searches YaRN's numbers for SmolLM2-135M (trained to 8,192 tokens) at 16,384 tokens, on answers that lie further back
# than 8,192 tokens, at no more than 0.05 nats within; then holds the best point against the best published method (PI, NTK,
# YaRN, Llama 3) on another novel. Record and figure go to benchmarks/results. Stopped, the same command goes on.
#
#   benchmarks/search_smollm2.sh first   17 points on three texts of two novels, held out five texts and two windows of a
#                                        third novel: about an hour of two cores
#   benchmarks/search_smollm2.sh         53 points on six texts, held out twelve texts and eight windows: about four hours
#
# $OVER (default yarn) is searched: yarn-attention, ntk, llama3 or factors instead. $DEVICE (default cpu), $DTYPE (default
# bfloat16). $ROPEWALK_SMOLLM2 is the GGUF, $MODEL any other model; further options go to the search.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MODEL=${MODEL:-${ROPEWALK_SMOLLM2:?"name the GGUF: benchmarks/doctor_smollm2.sh fetches it into build/smollm2"}}
DATA=${ROPEWALK_DATA:-../shared/data}
mkdir -p build/search
XDG_CACHE_HOME=$PWD/build/search
export XDG_CACHE_HOME
search() { # name, options
    name=$1
    shift
    "$BIN/ropewalk" extend search "$MODEL" --target 16384 --over "${OVER:-yarn}" --answers numbers \
        --text "$DATA/middlemarch.txt" --text "$DATA/bleak_house.txt" --validation "$DATA/moby_dick.txt" --start-char 30000 \
        --device "${DEVICE:-cpu}" --precision "${DTYPE:-bfloat16}" --record "benchmarks/results/$name.json" "$@"
}
if [ "${1:-}" = first ]; then
    shift
    search search-smollm2-first --budget 17 --search-windows 3 --answer-texts 5 --windows 2 "$@"
else
    search search-smollm2 --budget 53 --search-windows 6 --answer-texts 12 --windows 8 "$@"
fi
