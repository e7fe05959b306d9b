"""Which architectures of timm vitviz opens as modules in memory: ``python -m tests.parity.coverage RESULTS.jsonl``.

Every architecture with attention between patches is built with random weights, at reduced depth where timm takes one,
and looked at as a user would. Its logits are compared with those of its plain forward pass, and every layer's weights
with those that timm itself computes without a fused kernel, which enter the dropout behind its softmax. Architectures
that stand in the file are not built again. ``--table`` prints the table of ``docs/models.md`` from it.
"""

from __future__ import annotations

import argparse
import gc
import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitviz
from tests.parity.case import randomised
from tests.reference_packages import timm
from vitviz.errors.kinds import VitvizError

# Whose blocks let patches attend to patches or to a class token.
MODULES = (
    *("vision_transformer", "eva", "deit", "beit", "naflexvit", "vision_transformer_relpos"),
    *("vision_transformer_hybrid", "vision_transformer_sam", "qwen3_vit", "gemma4_vit", "deepseek_vit"),
    *("cait", "hiera", "hieradet_sam2", "pit", "convit", "crossvit", "coat", "levit", "tnt", "twins", "volo", "nest"),
    *("swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "mvitv2", "davit", "gcvit", "tiny_vit"),
    *("vitamin", "xcit", "visformer", "pvt_v2"),
)
WITH_DEPTH = {"vision_transformer", "eva", "deit", "beit", "naflexvit", "vision_transformer_relpos", "cait"}
DEPTH, MAX_PARAMETERS = 2, 1.2e9
TOLERANCE = 1e-5


def names() -> dict[str, list[str]]:
    """The architectures of every module."""
    return {module: sorted(timm.list_models(module=module)) for module in MODULES}


def built(name: str, module: str) -> torch.nn.Module:
    options = {"depth": DEPTH} if module in WITH_DEPTH else {}
    try:
        found = timm.create_model(name, pretrained=False, **options)
    except TypeError:
        found = timm.create_model(name, pretrained=False)
    return randomised(found.eval())


class Weights:
    """What enters the dropout behind every softmax of a module of timm, in the order of its calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.found: list[torch.Tensor] = []
        for part in module.modules():
            if hasattr(part, "fused_attn"):
                part.fused_attn = False
            dropout = getattr(part, "attn_drop", None)
            if isinstance(dropout, torch.nn.Module):
                dropout.register_forward_pre_hook(lambda _, given: self.found.append(given[0].detach()))


def looked_at(name: str, module: str) -> dict[str, Any]:
    """How an architecture fared: ``"exact"``, ``"refused"`` or ``"wrong"``, with figures."""
    row: dict[str, Any] = {"name": name, "module": module}
    network = built(name, module)
    if sum(each.numel() for each in network.parameters()) > MAX_PARAMETERS:
        return {**row, "result": "not run", "reason": "more memory than this machine was to spend"}
    noise = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    try:
        analysis = vitviz.analyze(noise, vitviz.load(network))
        analysis.rollout()
    except VitvizError as error:
        return {**row, "result": "refused", "reason": str(error)}
    pixels, trace = analysis.prepared.pixels, analysis.trace
    weights = Weights(network)
    with torch.no_grad():
        outputs = network(pixels).flatten()
    found = analysis.logits if analysis.model.labels else None
    row["output"] = None if found is None else float((found - outputs).abs().max() / outputs.abs().max())
    rows = [trace.weights(layer) for layer in range(trace.layers)]
    row["rows"] = max(float((each.sum(-1) - 1).abs().max()) for each in rows)
    same = [each for each in weights.found if each.shape[-3:] == rows[0].shape]
    row["layers"], row["compared"] = trace.layers, len(same)
    if len(same) == len(rows):
        pairs = zip(rows, same, strict=True)
        row["weights"] = max(float((one - other.reshape(one.shape)).abs().max()) for one, other in pairs)
    figures = [row[name] for name in ("output", "rows", "weights") if row.get(name) is not None]
    row["result"] = "exact" if max(figures) <= TOLERANCE else "wrong"
    return row


def look(file: Path) -> None:
    done = {json.loads(line)["name"] for line in file.read_text().splitlines()} if file.exists() else set()
    for module, found in names().items():
        for name in found:
            if name in done:
                continue
            try:
                row = looked_at(name, module)
            # What only shows that this script cannot build or feed it; looked at by hand.
            except Exception as error:
                row = {"name": name, "module": module, "result": "error", "reason": f"{type(error).__name__}: {error}"}
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(row["name"], row["result"], row.get("weights"), row.get("reason", "")[:160], flush=True)
            gc.collect()


def table(file: Path) -> str:
    """Markdown: for every module of timm, how many are exact, and what is said of the others."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [
        "| timm's module | architectures | exact | compared weights differ by at most | others |",
        "| --- | --- | --- | --- | --- |",
    ]
    for module in dict.fromkeys(row["module"] for row in rows):
        own = [row for row in rows if row["module"] == module]
        exact = [row for row in own if row["result"] == "exact"]
        largest = max((row["weights"] for row in exact if row.get("weights") is not None), default=None)
        reasons = Counter(
            f"{row['result']}: {row['reason'].partition(': ')[2] or row['reason']}"
            for row in own
            if row["result"] != "exact"
        )
        others = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
        figure = "–" if largest is None else f"{largest:.1e}"
        lines.append(f"| `{module}` | {len(own)} | {len(exact)} | {figure} | {others} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    if options.table:
        print(table(options.file))
    else:
        look(options.file)


if __name__ == "__main__":
    main()
