#!/usr/bin/env bash
# Checks vitviz on a CUDA card against the processor, and measures speed and memory there: four minutes on an H100, and
# eight at most, since each part is ended after its time. Run in a clone of the repository; nothing is installed. Tables
# and rows go to build/gpu (`--output FOLDER`); the exit status is 1 if a number is wrong or a part did not end. What
# does not fit into the card's memory is written as that. `--help` lists the options.
#
# It needs Python 3.10 or newer with torch >= 2.10, numpy, einops, scipy, safetensors, matplotlib, pillow, tqdm,
# transformers, pyarrow and pytest, and no network. What needs captum, timm, tensorboard or huggingface_hub is left out
# where they are missing, and the table says so. To bring wheels along, on a machine that has a network:
#
#     python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --dest wheels captum timm
#
# and on the machine with the card, before this command:
#
#     python3 -m pip install --no-index --no-deps --target site wheels/*.whl && export PYTHONPATH="$PWD/site"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
