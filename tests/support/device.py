"""Networks in the page's engine, under node."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from tests.support.example import ROOT
from tests.support.node import NODE
from vitviz import Model, Preprocessing
from vitviz.images.preprocessing import Fit
from vitviz.ui.explorer.device_file import device_file

FOLDER = ROOT / "vitviz" / "ui" / "page" / "device"
Kind = Literal["relaxed", "simd"]
KINDS: tuple[Kind, ...] = ("relaxed", "simd")
WASM = {"relaxed": "kernels-relaxed.wasm", "simd": "kernels.wasm"}
START = f"""
import {{ readFileSync, writeFileSync }} from "node:fs";
const FOLDER = {json.dumps(FOLDER.as_uri() + "/")}, folder = process.argv.at(-1);
const bytes = (name) => new Uint8Array(readFileSync(`${{folder}}/${{name}}`));
const facts = JSON.parse(readFileSync(0, "utf8"));
"""
ENCODE = """
const { openKernels } = await import(FOLDER + "kernels.js");
const { readDeviceFile } = await import(FOLDER + "device_file.js");
const { Network } = await import(FOLDER + "encoder.js");
const { Gradients } = await import(FOLDER + "gradients.js");
const { kind, wasm, passes } = facts, answers = [];
let gradients;
const kernels = openKernels({ [kind]: readFileSync(new URL(wasm, FOLDER)) });
if (kernels.kind !== kind) throw Error(`${kernels.kind}: expected ${kind}`);
const network = new Network(readDeviceFile(bytes("network").buffer), kernels);
for (const [index, { headFactors, ...options }] of passes.entries()) {
  const pixels = new Float32Array(bytes(index).buffer), factors = headFactors && Float32Array.from(headFactors);
  const { target, wants } = options;
  if (target) gradients ??= new Gradients(network);
  const scored = target && { ...target, ...(target.features && { features: Float32Array.from(target.features) }) };
  const encoding = target
    ? await gradients.differentiate(pixels, scored, wants)
    : await network.encode(pixels, { ...options, headFactors: factors });
  answers.push(Object.fromEntries(Object.entries(encoding).map(([name, value]) => {
    if (value instanceof Float32Array) writeFileSync(`${folder}/${index}.${name}`, value);
    return [name, typeof value === "number" ? value : null];
  })));
}
console.log(JSON.stringify(answers));
"""
STUDY = """
const { openKernels } = await import(FOLDER + "kernels.js");
const { readDeviceFile } = await import(FOLDER + "device_file.js");
const { Network } = await import(FOLDER + "encoder.js");
const { Gradients } = await import(FOLDER + "gradients.js");
const file = readDeviceFile(bytes("network").buffer);
const network = new Network(file, openKernels({ simd: readFileSync(new URL("kernels.wasm", FOLDER)) }));
const gradients = new Gradients(network), pixels = new Float32Array(bytes("pixels").buffer);
let last = Promise.resolve();
const team = {
  differentiate: (...asked) => last = last.then(() => gradients.differentiate(...asked.slice(0, 3))),
  encode: (pixels, { signal, apart, ...options }) => last = last.then(() => network.encode(pixels, options)),
};
const { logits } = await network.encode(pixels), answers = [];
const studied = { network: { team, file, workers: 2 }, labels: facts.labels, pixels, logits };
"""
CLASS_MAPS = """
const { classMapFile } = await import(FOLDER + "class_maps.js");
for (const [index, { method, parameters }] of facts.maps.entries())
  try {
    writeFileSync(`${folder}/map ${index}`, new Uint8Array(await classMapFile(studied, method, parameters, () => {})));
    answers.push({ file: readFileSync(`${folder}/map ${index}`).toString("base64") });
  } catch (error) {
    answers.push({ failed: error.message });
  }
console.log(JSON.stringify(answers));
"""
FLIP = """
const { foundFlip } = await import(FOLDER + "flip.js");
const steps = [], flip = await foundFlip(studied, (done, total) => steps.push([done, total]));
console.log(JSON.stringify([{ ...flip, steps }]));
"""
PREPARE = """
const { preparePicture } = await import(FOLDER + "prepare.js");
console.log(JSON.stringify(facts.map(({ preprocessing, fit, width, height }, index) => {
  const { pixels, picture } = preparePicture({ width, height, data: bytes(index) }, preprocessing, fit);
  writeFileSync(`${folder}/${index}.pixels`, pixels);
  return picture;
})));
"""


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass of the network.

    Args:
        pixels: ``"1 channel height width"``.
        options: of ``encode`` in ``encoder.js``; or ``target`` and ``wants`` of ``differentiate`` in ``gradients.js``.
    """

    pixels: torch.Tensor
    options: Mapping[str, Any] = field(default_factory=dict)


def on_device(model: Model | bytes, passes: Iterable[Pass], kind: Kind = "simd") -> list[dict[str, Any]]:
    """What the page's engine makes of pixels: flat tensors, numbers and None by name, for each pass.

    Args:
        model: or its device file.
        passes, kind: of the network.
    """
    listed = list(passes)
    files = {str(index): each.pixels.contiguous().float().numpy().tobytes() for index, each in enumerate(listed)}
    facts = {"kind": kind, "wasm": WASM[kind], "passes": [dict(each.options) for each in listed]}
    network = model if isinstance(model, bytes) else device_file(model)
    return _answers(ENCODE, facts, {**files, "network": network})


def class_maps_on_device(
    model: Model, pixels: torch.Tensor, maps: Iterable[tuple[str, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The page's maps of methods with all parameters: each a ``file`` in base64, or a sentence why it ``failed``."""
    listed = [{"method": method, "parameters": parameters} for method, parameters in maps]
    files = {"network": device_file(model), "pixels": pixels.contiguous().numpy().tobytes()}
    return _answers(STUDY + CLASS_MAPS, {"labels": list(model.labels), "maps": listed}, files)


def flip_on_device(model: Model, pixels: torch.Tensor) -> dict[str, Any]:
    """The page's squares without which the answer is another one, the passes, and the ``steps`` that it reports."""
    files = {"network": device_file(model), "pixels": pixels.contiguous().numpy().tobytes()}
    [found] = _answers(STUDY + FLIP, {"labels": list(model.labels)}, files)
    return found


def prepared_on_device(
    pictures: Iterable[tuple[Image.Image, Preprocessing, tuple[int, int], Fit | None]],
) -> list[dict[str, Any]]:
    """What the page makes of pictures, each with its preprocessing, the patch and the fit: pixels, and the geometry."""
    facts, files = [], {}
    for index, (image, preprocessing, patch, fit) in enumerate(pictures):
        height, width = preprocessing.whole_patches(*patch)
        settings = preprocessing.to_dict() | {"input_height": height, "input_width": width}
        fact = {"preprocessing": settings, "width": image.width, "height": image.height}
        facts.append(fact if fit is None else {**fact, "fit": fit})
        files[str(index)] = image.convert("RGBA").tobytes()
    return _answers(PREPARE, facts, files)


def _answers(program: str, facts: object, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """What a program prints, with the files ``INDEX.NAME`` that it wrote as flat tensors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        command = [str(NODE), "--input-type=module", "--eval", START + program, name]
        run = subprocess.run(command, input=json.dumps(facts), capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        answers: list[dict[str, Any]] = json.loads(run.stdout)
        for index, answer in enumerate(answers):
            for path in folder.glob(f"{index}.*"):
                answer[path.suffix[1:]] = torch.from_numpy(np.fromfile(path, np.float32))
        return answers
