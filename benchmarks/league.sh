#!/bin/sh
# The league: extension methods that need no tuning, on SmolLM2-135M (trained to 8,192 tokens), by one protocol: loss within
# and beyond, and retrieval of numbers. Record and figure go to benchmarks/results. Stopped, the same command goes on.
#
#   benchmarks/league.sh first   twice the trained length, one novel, the methods of 2024 to 2026 beside YaRN, dual chunk
#                                and crop
#   benchmarks/league.sh         all methods that need no tuning, twice and four times the trained length, copies as well
#
# $MEASURE (default loss,copies,retrieval) may leave something out; $WINDOWS (default 2) are taken of the novel; $TEXTS (default
# 1) are read for retrieval; $DTYPE (default bfloat16), $DEVICE (default cpu). $ROPEWALK_SMOLLM2 is the GGUF. Any other model:
# $MODEL, $TARGET (default 16384, twice its trained length) and $NAME (default league), which the records' names begin with;
# $METHODS: those of `first`; $BLOCK (default 2048): tokens of a block, and crop's step at most.
# Further options go to every run of the doctor. The record league-first.json: MEASURE=loss,retrieval TEXTS=2, half an
# hour of two cores.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MODEL=${MODEL:-${ROPEWALK_SMOLLM2:?"name the GGUF: benchmarks/doctor_smollm2.sh fetches it into build/smollm2"}}
DATA=${ROPEWALK_DATA:-../shared/data}
compare() { # name, lengths of retrieval, options
    name=${NAME:-league}-$1 texts=
    case $MEASURE in
    *retrieval*) texts=", \"retrieval_samples\": ${TEXTS:-1}, \"retrieval_lengths\": [$2]" ;;
    esac
    shift 2
    "$BIN/ropewalk" doctor "$MODEL" --text "$DATA/moby_dick.txt" --measure "$MEASURE" \
        --protocol "{\"start_char\": 30000, \"block\": ${BLOCK:-2048}$texts}" \
        --device "${DEVICE:-cpu}" --dtype "${DTYPE:-bfloat16}" --windows "${WINDOWS:-2}" \
        --state "build/league/state-$name" --resume --json "benchmarks/results/$name.json" \
        --report "build/league/$name" "$@"
    for kind in png svg; do
        cp "build/league/$name/loss.$kind" "benchmarks/results/$name.$kind"
    done
}
mkdir -p build/league
MEASURE=${MEASURE:-loss,copies,retrieval} TARGET=${TARGET:-16384}
if [ "${1:-}" = first ]; then
    shift
    compare first "$TARGET" --target "$TARGET" --methods "${METHODS:-yarn,mrrope,string,lampe,jet-long,dca,crop}" "$@"
else
    compare 2x "$((TARGET / 2)), $TARGET" --target "$TARGET" --methods all "$@"
    compare 4x "$((2 * TARGET))" --target "$((2 * TARGET))" --methods all "$@"
fi
