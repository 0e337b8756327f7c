#!/bin/sh
# The league: extension methods that need no tuning, on SmolLM2-135M (trained to 8,192 tokens), by one protocol: loss within
# and beyond, and retrieval of numbers. Record and figure go to benchmarks/results. Stopped, the same command goes on.
#
#   benchmarks/league.sh first   twice the trained length, one novel, the methods of 2024 to 2026 beside YaRN, dual chunk
#                                and crop
#   benchmarks/league.sh         all methods that need no tuning, twice and four times the trained length, use as well
#
# $MEASURE (default loss,use,retrieval) may leave something out; $WINDOWS (default 2) are taken of the novel; $TEXTS (default
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
compare() { # name, options
    name=${NAME:-league}-$1
    shift
    "$BIN/ropewalk" doctor "$MODEL" --text "$DATA/moby_dick.txt" --start-char 30000 --block "${BLOCK:-2048}" \
        --device "${DEVICE:-cpu}" --dtype "${DTYPE:-bfloat16}" --windows "${WINDOWS:-2}" \
        --state "build/league/state-$name" --resume --json "benchmarks/results/$name.json" \
        --report "build/league/$name" "$@"
    for kind in png svg; do
        cp "build/league/$name/loss.$kind" "benchmarks/results/$name.$kind"
    done
}
mkdir -p build/league
MEASURE=${MEASURE:-loss,use,retrieval} TARGET=${TARGET:-16384}
measured() { # lengths of retrieval
    case $MEASURE in
    *retrieval*) echo "--measure $MEASURE --retrieval numbers --retrieval-samples ${TEXTS:-1} --retrieval-lengths $1" ;;
    *) echo "--measure $MEASURE" ;;
    esac
}
# shellcheck disable=SC2046 # the words of measured are options
if [ "${1:-}" = first ]; then
    shift
    compare first --target "$TARGET" --methods "${METHODS:-yarn,mrrope,string,lampe,jet-long,dca,crop}" $(measured "$TARGET") "$@"
else
    compare 2x --target "$TARGET" --methods all $(measured "$((TARGET / 2)),$TARGET") "$@"
    compare 4x --target "$((2 * TARGET))" --methods all $(measured "$((2 * TARGET))") "$@"
fi
