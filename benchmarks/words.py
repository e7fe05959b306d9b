"""Does the attention of a trained network lie on the glyph that it writes? ``python -m benchmarks.words FOLDER``.

The network reads formulas: latex-ocr-junia 0.1.3, 8 million parameters. Nobody states its licence, so whoever starts
this downloads it by hand, and no test needs it::

    pip download --no-deps latex-ocr-junia==0.1.3
    python -m zipfile -e latex_ocr_junia-0.1.3-py3-none-any.whl FOLDER

Its class is none of transformers. So its encoder stays its own, and the weights of its decoder go into transformers'
MBart decoder, which computes the same; the logits of both are compared. What follows is vitviz as a user has it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.textpath import text_to_path
from PIL import Image
from torch import nn

import vitviz
from benchmarks.tables import table
from tests.reference_packages import transformers as hf
from vitviz import Answer

FORMULAS = (
    *("u+v=w-q", "p(t)=h-3d", "R=8-5n", "x^{2}+y^{2}=z^{2}", "a+b=c", "E=mc^{2}", "f(x)=3x+5", "A=B-4C"),
    *("k_{1}+k_{2}=9", "g(s)=7s-2", "H=6+m_{3}"),
)
# What LaTeX writes beside the glyphs.
MARKS = "^_{} \\"
# Pixels of a line of 72 points, and around the formula.
SCALE, PAD = 1.8, 10
HIDING = "hiding of each glyph: fall of the logarithm of the probability"
SAME_LOGITS = 1e-3
# Names of the package's weights, and MBart's.
NAMES = (
    (r"^decoder_embed\.token_emb", "model.decoder.embed_tokens"),
    (r"^decoder_embed\.pos_emb", "model.decoder.embed_positions"),
    (r"^decoder_embed\.norm", "model.decoder.layernorm_embedding"),
    (r"^decoder_norm", "model.decoder.layer_norm"),
    (r"^decoder_blocks\.", "model.decoder.layers."),
    (r"\.self_norm", ".self_attn_layer_norm"),
    (r"\.cross_norm", ".encoder_attn_layer_norm"),
    (r"\.ffn_norm", ".final_layer_norm"),
    (r"\.cross_attn", ".encoder_attn"),
    (r"\.ffn\.0", ".fc1"),
    (r"\.ffn\.3", ".fc2"),
)


@dataclass(frozen=True)
class Glyph:
    """A character of a rendered formula, and its box: left, top, right and bottom in pixels."""

    text: str
    box: tuple[float, float, float, float]


def render(formula: str) -> tuple[Image.Image, list[Glyph]]:
    """A formula as a picture, and its glyphs."""
    font = FontProperties(size=14, math_fontfamily="cm")
    placed, shapes, bars = text_to_path.get_glyphs_mathtext(font, f"${formula}$")
    size = SCALE * 14 / text_to_path.FONT_SCALE
    outlines = [
        Outline((np.asarray(shapes[name][0]) * each + (x, y)) * size, shapes[name][1]) for name, x, y, each in placed
    ]
    assert not bars
    extents = [outline.get_extents() for outline in outlines]
    left, bottom = min(each.x0 for each in extents) - PAD, min(each.y0 for each in extents) - PAD
    width = round(max(each.x1 for each in extents) + PAD - left)
    height = round(max(each.y1 for each in extents) + PAD - bottom)
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(left, left + width), ylim=(bottom, bottom + height))
    axes.axis("off")
    for outline in outlines:
        axes.add_patch(PathPatch(outline, facecolor="black", linewidth=0))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    top = bottom + height
    boxes = [(each.x0 - left, top - each.y1, each.x1 - left, top - each.y0) for each in extents]
    texts = [each for each in formula if each not in MARKS]
    glyphs = [Glyph(text, box) for text, box in zip(texts, boxes, strict=True)]
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"), glyphs


class Encoder(hf.PreTrainedModel):
    """The package's own encoder, as transformers takes one."""

    config_class = hf.ViTConfig
    main_input_name = "pixel_values"

    def __init__(self, network: Any) -> None:
        super().__init__(hf.ViTConfig(hidden_size=network.config_obj.d_model))
        self.network = network

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> hf.modeling_outputs.BaseModelOutput:
        return hf.modeling_outputs.BaseModelOutput(last_hidden_state=self.network.encode(pixel_values))


def decoder_of(own: Any) -> Any:
    """A decoder of MBart in the shape of the package's."""
    decoder = hf.MBartForCausalLM(
        hf.MBartConfig(
            vocab_size=own.vocab_size,
            d_model=own.d_model,
            decoder_layers=own.num_decoder_layers,
            decoder_attention_heads=own.num_heads,
            decoder_ffn_dim=own.mlp_dim,
            max_position_embeddings=own.max_length,
            pad_token_id=own.pad_token_id,
            is_decoder=True,
            add_cross_attention=True,
            tie_word_embeddings=False,
        )
    )
    decoder.lm_head = nn.Linear(own.d_model, own.vocab_size)
    for norm in decoder.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = 1e-6
    return decoder


def decoder_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The package's weights of the decoder by MBart's names."""
    found = dict[str, torch.Tensor]()
    for name, value in weights.items():
        for own, other in NAMES:
            name = re.sub(own, other, name)
        if not name.startswith(("model.", "lm_head.")):
            continue
        if name.endswith(("in_proj_weight", "in_proj_bias")):
            attention, _, kind = name.rpartition(".in_proj_")
            found |= {f"{attention}.{part}_proj.{kind}": each for part, each in zip("qkv", value.chunk(3), strict=True)}
        else:
            # MBart's positions begin with two that are not used.
            found[name] = nn.functional.pad(value, (0, 0, 2, 0)) if "embed_positions" in name else value
    return found


class Processor:
    """What the package makes of a picture, and its letters for vitviz."""

    chat_template = None

    def __init__(self, read: Any, letters: Any, config: Any) -> None:
        self.read, self.letters, self.config, self.tokenizer = read, letters, config, self
        self.all_special_ids = (letters.pad_id, letters.bos_id, letters.eos_id)

    def __call__(self, images: Image.Image, return_tensors: str) -> dict[str, torch.Tensor]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "formula.png"
            images.save(path)
            return {"pixel_values": self.read(path, self.config.image_height, self.config.image_width)[None]}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self.letters.encode(text)[1:-1])

    def decode(self, numbers: Sequence[int]) -> str:
        return str(self.letters.decode(numbers))


def open_model(folder: Path) -> vitviz.LanguageModel:
    """The network in the unpacked wheel, checked against the package's own."""
    sys.path.insert(0, str(folder))
    from latex_ocr_junia import data, model, tokenizer, utils  # type: ignore[import-not-found]

    assets = folder / "latex_ocr_junia" / "assets"
    letters = tokenizer.LatexTokenizer.load(assets / "tokenizer.json")
    network = model.build_model(utils.load_model_config(assets / "model_config.json"))
    module = hf.VisionEncoderDecoderModel(encoder=Encoder(network), decoder=decoder_of(network.config_obj)).eval()
    # Only now, since transformers draws the weights of what it builds.
    weights = torch.load(assets / "best.pt", map_location="cpu", weights_only=True)["model_state_dict"]
    network.load_state_dict(weights)
    module.decoder.load_state_dict(decoder_weights(weights))
    for config in (module.config, module.generation_config):
        config.decoder_start_token_id, config.eos_token_id = letters.bos_id, letters.eos_id
        config.pad_token_id = letters.pad_id
    processor = Processor(data.load_and_preprocess_image, letters, network.config_obj)
    pixels, ids = processor(render(FORMULAS[0])[0], "pt")["pixel_values"], torch.tensor([letters.encode("u+v")[:-1]])
    with torch.no_grad():
        own, ported = network.decode(ids, network.encode(pixels)), module(pixels, decoder_input_ids=ids).logits
    difference = float((own - ported).abs().max())
    print(f"largest difference of logits from the package's own: {difference:.1e}", file=sys.stderr)
    assert difference < SAME_LOGITS
    return vitviz.load(module, processor=processor)


def aligned(answer: Answer, glyphs: Sequence[Glyph]) -> dict[int, int]:
    """For each token that writes a glyph as it was rendered, the number of this glyph."""
    steps = [step for step, token in enumerate(answer.tokens) if token.text.strip() not in ("", *MARKS)]
    written, rendered = [answer.tokens[step].text for step in steps], [glyph.text for glyph in glyphs]
    blocks = SequenceMatcher(None, written, rendered, autojunk=False).get_matching_blocks()
    return {steps[block.a + place]: block.b + place for block in blocks for place in range(block.size)}


def inside(shape: tuple[int, int], size: tuple[int, int], glyphs: Sequence[Glyph]) -> torch.Tensor:
    """``"glyph row column"``, the share of each cell of a map on the whole picture that lies in the box of a glyph."""

    def overlaps(low: float, high: float, length: int, count: int) -> torch.Tensor:
        edges = torch.linspace(0, length, count + 1)
        return (edges[1:].clamp(max=high) - edges[:-1].clamp(min=low)).clamp(min=0) * count / length

    (rows, columns), (width, height) = shape, size
    boxes = [glyph.box for glyph in glyphs]
    pairs = [(overlaps(box[1], box[3], height, rows), overlaps(box[0], box[2], width, columns)) for box in boxes]
    return torch.stack([down[:, None] * across for down, across in pairs])


def read(formula: str, model: vitviz.LanguageModel) -> list[dict[str, tuple[float, float]]]:
    """For each character that was read, by what was asked: whether its glyph has the most, and its share of all."""
    picture, glyphs = render(formula)
    answer, found = vitviz.ask(picture, "", model), []
    cells = inside(answer.attention(answer.tokens[0], 0).shape, picture.size, glyphs)
    hidden = [[tuple(cell) for cell in each.nonzero().tolist()] for each in cells]
    heads = [(layer, head) for layer, each in enumerate(answer.layers) for head in range(len(each.weights(0)))]
    for step, number in aligned(answer, glyphs).items():
        token = answer.tokens[step]
        every = {f"layer {layer}, head {head}": answer.attention(token, layer, head).values for layer, head in heads}
        maps = {
            "attention, the default: the head that is ranked first": answer.attention(token).values,
            "attention, mean of all heads": torch.stack([*every.values()]).mean(0),
            "rollout": answer.rollout(token).values,
            "relevance": answer.relevance(token).values,
            **every,
        }
        falls = torch.tensor([math.log(token.probability / answer.hiding(token, each)) for each in hidden])
        amounts = {name: (cells * values).sum((1, 2)) for name, values in maps.items()}
        found.append(
            {
                name: (float((each / cells.sum((1, 2))).argmax() == number), float(each[number] / each.sum()))
                for name, each in amounts.items()
            }
            | {HIDING: (float(falls.argmax() == number), float(falls[number].clamp(min=0) / falls.clamp(min=0).sum()))}
            | {"chance": (1 / len(glyphs), float(cells[number].sum() / cells.sum()))}
        )
    print(f"{formula}: read as {answer.text}, {len(found)} of {len(glyphs)} glyphs", file=sys.stderr, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.words", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the wheel was unpacked")
    parser.add_argument("--formulas", nargs="+", default=FORMULAS, help="others, in LaTeX")
    options = parser.parse_args(arguments)
    model = open_model(options.folder)
    found = [each for formula in options.formulas for each in read(formula, model)]
    means = {name: np.mean([each[name] for each in found], 0) for name in found[0]}
    best = max((name for name in means if name.startswith("layer ")), key=lambda name: means[name].sum())
    print(f"{len(found)} characters; the best head is {best}\n")
    names = {name: name for name in means if not name.startswith("layer ")} | {best: "attention, the best head"}
    columns = "the right glyph has the most", "share of it, of all glyphs"
    rows = {
        names[name]: {column: f"{value:.2f}" for column, value in zip(columns, means[name], strict=True)}
        for name in sorted(names, key=lambda name: -means[name][0])
    }
    print("\n".join(table(rows, corner="map")))


if __name__ == "__main__":
    main()
