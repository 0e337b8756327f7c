#!/bin/sh
# Build the extension for Arm (aarch64, Linux) with a cross compiler, and run its tests under emulation by QEMU.
# Needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user), apt-get for Python's arm64
# packages, and PyPI for the arm64 wheels of torch (146 MB) and numpy. Nothing is installed outside build/arm.
# Usage: scripts/arm.sh [PYTEST ARGUMENTS]
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
TORCH=${TORCH:-2.10.0}  # the last whose arm64 wheel on PyPI is built without CUDA
ROOT=$PWD/build/arm/root
SITE=$PWD/build/arm/site
for tool in aarch64-linux-gnu-g++ qemu-aarch64 apt-get dpkg-deb; do
  command -v "$tool" > /dev/null || { echo "arm: $tool is missing. Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 2; }
done
mkdir -p build/arm/apt/lists/partial build/arm/apt/archives/partial build/arm/packages

# Python 3.11 for arm64, unpacked and not installed.
if [ ! -x "$ROOT/usr/bin/python3.11" ]; then
  APT="-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists=$PWD/build/arm/apt/lists
    -o Dir::State::status=/dev/null -o Dir::Cache=$PWD/build/arm/apt -o APT::Sandbox::User=root"
  apt-get $APT update -qq
  (cd build/arm/packages && apt-get $APT download -qq python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
    libpython3.11-dev libc6 libgcc-s1 libstdc++6 zlib1g libffi8 libssl3 libexpat1 libuuid1 libcrypt1 liblzma5 libbz2-1.0 \
    libsqlite3-0 libncursesw6 libtinfo6 libreadline8 libdb5.3 libnsl2 libtirpc3 libgomp1)
  for package in build/arm/packages/*.deb; do dpkg-deb -x "$package" "$ROOT"; done
fi

# Wheels for arm64; pip only unpacks them.
if [ ! -d "$SITE/torch" ]; then
  "$PYTHON" -m pip install --quiet --no-deps --target "$SITE" --python-version 311 --only-binary=:all: \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    --platform manylinux_2_27_aarch64 \
    "torch==$TORCH" numpy filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec setuptools \
    pytest pytest-timeout pytest-xdist execnet iniconfig pluggy packaging pygments hypothesis sortedcontainers attrs \
    nanobind safetensors tokenizers
fi

# The extension, as CMakeLists.txt builds it on an Arm machine.
cmake -S . -B build/arm/cmake -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$(command -v "$PYTHON")" \
  -DPython_INCLUDE_DIR="$ROOT/usr/include/python3.11" -Dnanobind_DIR="$SITE/nanobind/cmake" \
  -DCMAKE_CXX_FLAGS="-isystem $ROOT/usr/include -isystem $ROOT/usr/include/aarch64-linux-gnu" > build/arm/cmake.log
cmake --build build/arm/cmake -j "$(nproc)"
mkdir -p "$SITE/ropewalk_kernels"
cp build/arm/cmake/_kernels*.so "$SITE/ropewalk_kernels/_kernels.cpython-311-aarch64-linux-gnu.so"

# The tests of every kernel, with Arm's instruction sets; `max` has BF16.
[ $# -gt 0 ] || set -- -q tests/rotation/backends/test_shapes.py tests/rotation/backends/test_linear.py \
  --deselect tests/rotation/backends/test_linear.py::test_what_goes_where  # it needs torch.cpu.get_capabilities, of torch 2.11
QEMU_LD_PREFIX=$ROOT PYTHONHOME=$ROOT/usr PYTHONPATH=$PWD/src:$SITE PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
  qemu-aarch64 -cpu max "$ROOT/usr/bin/python3.11" scripts/pytest_with.py \
  "$SITE/ropewalk_kernels/_kernels.cpython-311-aarch64-linux-gnu.so" -p no:cacheprovider --timeout 3600 "$@"
