#!/usr/bin/env bash
# Asks a graphics card everything that vitviz wants to know of it, in at most eight minutes; `--help` lists the options.
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
