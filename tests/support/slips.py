"""Common mistakes of newcomers, and the error message for each, as a notebook shows them.

A sentence may go on in lines that are indented, and has the texts of TEXTS by their names.
"""

from __future__ import annotations

from string import Template

import vitviz
from vitviz import VitvizError
from vitviz.images.file_kinds import EXPECTED
from vitviz.images.sources import STANDARDISED

LABELS = ("cat", "dog", "crane", "owl, night bird", "frog")
PHOTO = "photo.png"
# By the names that stand for them in sentences.
TEXTS = {
    "EXPECTED": EXPECTED,
    "STANDARDISED": STANDARDISED,
    "METHOD_NAMES": (
        "'attention', 'pooling_attention', 'attention_mass', 'value_attention', 'rollout', 'attention_flow', "
        "'gradient_rollout', 'relevance', 'legrad', 'grad_cam', 'integrated_gradients' or 'occlusion'"
    ),
    "TOKENS": (
        "this model has prefix tokens 'cls', 'register 1', patches (0, 0) to (3, 5), 'patches' for the mean of all, "
        "and token indices 0 to 25"
    ),
    "LAYERS": "this model has layers 0 to 2 (or -3 to -1 from the end)",
    "HEADS": "expected a number from 0 to 3, 'mean', 'max' or 'min'",
    "TARGETS": "expected a label or a number to 4: 'cat', 'dog', 'crane', 'owl, night bird' or 'frog'",
    "COLORMAPS": "expected 'inferno', 'viridis', 'magma', 'cividis', 'gray' or 'turbo', or one of matplotlib's own as "
    "an object, such as matplotlib.colormaps['jet']",
    "ROLLOUT": (
        "expected 'head_fusion', 'discard_ratio', 'residual_weight', 'start_layer', 'end_layer', 'reference', "
        "'exclude' or 'query'"
    ),
    "CV2": "cv2.imread gives None for a file that it cannot read",
    "KINDS": "expected a path, bytes, a PIL image, a NumPy array or a tensor",
    "ARRAY": "expected 'height width' or 'height width channel' with 1, 3 or 4 channels",
    "NO_CHECKPOINT": "neither a checkpoint's name nor a file or folder",
    "LISTED": "vitviz.list_models() or `vitviz models` lists the names, 'vitviz-photos' is bundled",
    "BY_NAME": "expected maps by name, such as {'rollout': analysis.rollout()}",
}

SESSION = """\
# Misspelt names.
>>> analysis.map("rolout")
MethodError: method 'rolout': expected $METHOD_NAMES; did you mean 'rollout'?
>>> analysis.map("Grad-CAM")
MethodError: method 'Grad-CAM': expected $METHOD_NAMES; did you mean 'grad_cam'?
>>> analysis.map(None)
MethodError: method None: expected $METHOD_NAMES
>>> analysis.map("rollout", discard=0.9)
MethodError: rollout has no parameter 'discard': $ROLLOUT; did you mean 'discard_ratio'?
>>> analysis.map("rollout", layer=1)
MethodError: rollout has no parameter 'layer': $ROLLOUT; did you mean 'end_layer'?
>>> analysis.attention(heads=1)
MethodError: attention has no parameter 'heads': expected 'layer', 'head', 'query', 'direction' or 'exclude'; did you
    mean 'head'?
>>> analysis.switched_off(head=[(0, 1)])
MethodError: switched_off has no parameter 'head': expected 'heads', 'patches' or 'target'; did you mean 'heads'?
>>> analysis.map("relevance", target="kat")
MethodError: target 'kat': this model has no such class; $TARGETS; did you mean 'cat'?
>>> analysis.attention(query="CLS")
QueryError: token 'CLS': $TOKENS; did you mean 'cls'?
>>> analysis.attention(query="register1")
QueryError: token 'register1': $TOKENS; did you mean 'register 1'?
>>> analysis.attention(head="Max")
MethodError: head 'Max': $HEADS; did you mean 'max'?
>>> analysis.attention(direction="rows")
MethodError: direction 'rows': expected 'row' or 'column'; did you mean 'row'?
>>> heatmap.overlay("Viridis")
MethodError: colormap 'Viridis': $COLORMAPS; did you mean 'viridis'?
>>> Style("jet")
MethodError: colormap 'jet': $COLORMAPS
>>> Style(colourmap="viridis")
MethodError: Style has no parameter 'colourmap': expected 'colormap', 'opacity', 'smooth', 'grid', 'low', 'high',
    'fade', 'drain', 'scale' or 'percentiles'; did you mean 'colormap'?
>>> heatmap.overlay(opacity=0.3)
MethodError: no parameter 'opacity': it is one of a style; expected style=vitviz.Style(opacity=0.3)
>>> analysis.faithfulness({"rollout": heatmap}, metrics=["Deletions"])
MethodError: metric 'Deletions': expected 'deletion', 'insertion', 'positive', 'negative' or 'road'; did you mean
    'deletion'?
>>> vitviz.evaluation.comparison.compare(analysis, {"rolout": {"discard_ratio": 0.5}})
MethodError: method 'rolout': expected $METHOD_NAMES; did you mean 'rollout'?
>>> vitviz.analyze(photo, model, fit="Crop")
ConfigError: fit 'Crop': expected 'crop', 'squash' or 'native'; did you mean 'crop'?
>>> vitviz.analyze(photo, model, storage=torch.bfloat16)
ConfigError: storage torch.bfloat16: expected 'float32', 'bfloat16' or 'float16'
>>> vitviz.load(precision="bf16")
ConfigError: precision 'bf16': expected 'float32', 'bfloat16' or 'float16'; did you mean 'bfloat16'?
>>> vitviz.load("DINO_ViTS16")
CheckpointError: 'DINO_ViTS16': $NO_CHECKPOINT; did you mean 'dino_vits16'? $LISTED
>>> vitviz.analyze_batch([photo], model, on_error="ignore")
ConfigError: on_error 'ignore': expected 'raise', 'skip' or 'keep'

# Something of another kind than is expected.
>>> analysis.map('relevance', target=3.0)
MethodError: target 3.0: $TARGETS, or a vitviz.Target
>>> analysis.map('relevance', target=torch.tensor([1, 2]))
MethodError: target Tensor of [1, 2]: $TARGETS, or a vitviz.Target
>>> analysis.map('relevance', target=5)
MethodError: target 5: this model has classes 0 to 4
>>> analysis.map('relevance', target=True)
MethodError: target True: $TARGETS, or a vitviz.Target
>>> analysis.attention(query=(3.0, 2.0))
QueryError: patch (3.0, 2.0): $TOKENS
>>> analysis.attention(query=[(0, 1), (0, 2)])
QueryError: patch [(0, 1), (0, 2)]: $TOKENS
>>> analysis.attention(query=np.zeros((2, 3)))
QueryError: token ndarray of shape (2, 3): $TOKENS
>>> analysis.attention(query=-1)
QueryError: token -1: $TOKENS
>>> analysis.attention(head=[0, 1])
MethodError: head [0, 1]: $HEADS
>>> analysis.attention(head=1.0)
MethodError: head 1.0: $HEADS
>>> analysis.attention(head=4)
QueryError: head 4: this model has heads 0 to 3 (or -4 to -1 from the end)
>>> analysis.attention("cls")
QueryError: layer 'cls': expected a whole number; $LAYERS
>>> analysis.attention(layer=[0])
QueryError: layer [0]: expected a whole number; $LAYERS
>>> analysis.attention(layer=1.5)
QueryError: layer 1.5: expected a whole number; $LAYERS
>>> analysis.attention(layer=3)
QueryError: layer 3: $LAYERS
>>> analysis.rollout(discard_ratio="0.9")
MethodError: discard_ratio = '0.9': expected a number in [0, 1)
>>> analysis.rollout(discard_ratio=90)
MethodError: discard_ratio = 90: expected a number in [0, 1)
>>> analysis.rollout(head_fusion=['mean'])
MethodError: head fusion ['mean']: expected 'mean', 'max' or 'min'
>>> analysis.map('attention_mass', mass=60)
MethodError: mass = 60: expected a number above 0 and at most 1
>>> analysis.map('attention_flow', most_patches=4.5)
MethodError: most_patches = 4.5: expected a whole number of at least 1
>>> analysis.predictions("5")
MethodError: count = '5': expected a whole number of at least 0
>>> analysis.faithfulness(heatmap)
MethodError: maps: a Heatmap found; $BY_NAME
>>> analysis.faithfulness({"rollout": 3})
MethodError: maps: {'rollout': 3} found; $BY_NAME
>>> analysis.faithfulness({"rollout": heatmap}, metrics="deletion")
MethodError: metrics = 'deletion': expected several, such as ('deletion',)
>>> analysis.switched_off(heads=(0, 1))
QueryError: heads = (0, 1): expected pairs of layer and head, such as [(0, 1)]
>>> analysis.switched_off(heads=3)
QueryError: heads = 3: expected pairs of layer and head, such as [(0, 1)]
>>> analysis.switched_off(patches=np.array([2, 3]))
QueryError: patches = ndarray of [2, 3]: expected pairs of row and column, such as [(2, 3)]
>>> heatmap.overlay(7)
MethodError: style: 7 found; expected a vitviz.Style or a colormap's name
>>> heatmap.overlay(mark="cls")
QueryError: mark 'cls': this map has patches (0, 0) to (3, 5)
>>> Style(opacity=60)
MethodError: opacity = 60: expected a number in [0, 1]
>>> Style(smooth="yes")
MethodError: smooth = 'yes': expected True or False
>>> Style(scale="ranks")
MethodError: scale 'ranks': expected 'linear', 'robust', 'log', 'rank' or 'zero'; did you mean 'rank'?
>>> Style(percentiles=(98, 2))
MethodError: percentiles = (98, 2): expected two numbers from 0 to 100, the lower one first
>>> Style(low=2, high=1)
MethodError: low = 2 and high = 1: expected finite numbers, low at most high
>>> Style(low="0")
MethodError: low = '0' and high = None: expected finite numbers, low at most high
>>> vitviz.analyze(photo, model, resolution=(224, 224))
ConfigError: resolution = (224, 224): expected one number, the shorter side in pixels: a multiple of the patch's 4
    pixels: 16 or 20
>>> vitviz.analyze(photo, model, resolution=18)
ConfigError: resolution = 18: expected a multiple of the patch's 4 pixels: 16 or 20
>>> vitviz.analyze(photo, model, max_bytes="4 GB")
ConfigError: max_bytes = '4 GB': expected a whole number of at least 0

# Several of what is one.
>>> analysis.map("relevance", target=["cat", "dog"])
MethodError: target ['cat', 'dog']: $TARGETS, or a vitviz.Target; of several, a map each: [analysis.relevance(target)
    for target in ['cat', 'dog']]
>>> vitviz.analyze(torch.rand(2, 3, 16, 24), model)
ImageError: tensor of shape (2, 3, 16, 24) and type torch.float32: expected 'channel height width' with 1, 3 or 4
    channels, or 'height width'; of several images, vitviz.analyze_batch(images, model); $STANDARDISED
>>> vitviz.analyze(np.zeros((2, 3, 16, 24)), model)
ImageError: array of shape (2, 3, 16, 24) and type float64: $ARRAY; of several, 'batch channel height width',
    vitviz.analyze_batch(array.transpose(0, 2, 3, 1), model)
>>> vitviz.analyze(np.zeros((3, 16, 24)), model)
ImageError: array of shape (3, 16, 24) and type float64: $ARRAY; of 'channel height width', array.transpose(1, 2, 0)
    gives that
>>> vitviz.analyze(torch.zeros(3, 16, 24) - 2, model)
ImageError: tensor of shape (3, 16, 24) and type torch.float32: nothing says what black and white are; expected
    value_range, the values of black and white; $STANDARDISED
>>> vitviz.analyze(pixels * 1.0, model)
ImageError: array of shape (16, 24, 3) and type float64: values from 0 to 255; expected floating point in [0, 1], or
    value_range, the values of black and white, such as value_range=(0, 255)
>>> vitviz.analyze([torch.rand(2, 3, 16, 24), torch.tensor([0, 1])], model)
ImageError: the image: list of 2, the first a Tensor of shape (2, 3, 16, 24) found; $KINDS; $STANDARDISED
>>> vitviz.analyze((torch.rand(3, 16, 24), 1), model)
ImageError: the image: tuple of 2, the first a Tensor of shape (3, 16, 24) found; $KINDS; of a picture with its class,
    vitviz.analyze(pair[0], model)
>>> vitviz.analyze(torch.utils.data.DataLoader([1]), model)
ImageError: the image: a DataLoader found; $KINDS; of batches of the model's input, vitviz.analyze_loader(loader,
    model)
>>> vitviz.analyze((path for path in [photo]), model)
ImageError: the image: a generator found; $KINDS; of several images, vitviz.analyze_batch(images, model)
>>> vitviz.analyze('.', model)
ImageError: '.': a folder; $EXPECTED; of its pictures, vitviz.analyze_batch([each.source for each in
    vitviz.read_items('.')], model)

# Arguments in the wrong order, missing, or one too many.
>>> vitviz.analyze(model, photo)
ConfigError: analyze: a Model found first, then 'photo.png'; expected the image first: analyze(image, model)
>>> vitviz.cost(model, photo)
ConfigError: cost: a Model found first, then 'photo.png'; expected the image first: cost(image, model)
>>> vitviz.analyze_batch(model, [photo])
ConfigError: analyze_batch: a Model found first, then ['photo.png']; expected the images first: analyze_batch(images,
    model)
>>> vitviz.analyze(photo, "dino_vits16")
ConfigError: model: 'dino_vits16' found; expected a Model, such as vitviz.load('dino_vits16') gives
>>> vitviz.analyze(photo, model.network)
ConfigError: model: a VisionTransformer found; expected a Model, such as vitviz.load() gives
>>> vitviz.evaluation.comparison.compare(heatmap)
ConfigError: analysis: a Heatmap found; expected an Analysis, such as vitviz.analyze(image, model) gives
>>> vitviz.evaluation.compare(analysis, analysis)
ConfigError: parameters: an Analysis found; expected a dict, such as {'rollout': {'discard_ratio': 0.9}} gives
>>> vitviz.evaluation.compare(analysis, ["rollout"])
ConfigError: parameters: ['rollout'] found; expected a dict, such as {'rollout': {'discard_ratio': 0.9}} gives
>>> heatmap.overlay(cmap="viridis")
MethodError: no parameter 'cmap': it is one of a style; expected style=vitviz.Style(colormap='viridis')
>>> heatmap.overlay(alpha=3)
MethodError: opacity = 3: expected a number in [0, 1]
>>> analysis.map("attention_rollout")
MethodError: method 'attention_rollout': expected $METHOD_NAMES; did you mean 'rollout'?
>>> vitviz.Model("dino_vits16")
ConfigError: Model: missing a required argument: 'network'; expected vitviz.load('vitviz-photos')
>>> vitviz.Analysis(photo, model)
ConfigError: Analysis: missing a required argument: 'logits'; expected vitviz.analyze(image, model)
>>> vitviz.Heatmap(np.zeros((4, 4)), photo)
MethodError: Heatmap: missing a required argument: 'geometry'; expected vitviz.Heatmap.of(array, image)
>>> vitviz.save_checkpoint(model, "mine.safetensors")
ConfigError: model: 'mine.safetensors' found; expected a Model, such as vitviz.load() gives
>>> vitviz.open_snapshot("runs/mine", 100)
ConfigError: model: 'runs/mine' found; expected a Model, such as vitviz.load() gives
>>> heatmap.save()
MethodError: save: missing a required argument: 'path'; expected save(path, style=…, mark=…)
>>> analysis.attention(0, 0, "cls", "row", "sinks", 7)
MethodError: attention: too many positional arguments; expected attention(layer=…, head=…, query=…, direction=…,
    exclude=…)

# What is no image.
>>> vitviz.analyze("https://example.org/cat.jpg", model)
ImageError: cat.jpg: a URL; vitviz does not fetch pictures: save it, and give its path
>>> vitviz.analyze(Path("https://example.org/cat.jpg"), model)
ImageError: cat.jpg: a URL; vitviz does not fetch pictures: save it, and give its path
>>> vitviz.analyze("data:image/png;base64,AAAA", model)
ImageError: the image: a URL; vitviz does not fetch pictures: save it, and give its path
>>> vitviz.analyze("", model)
ImageError: '': an empty path; $EXPECTED
>>> vitviz.analyze(None, model)
ImageError: the image: None found; $KINDS; $CV2
>>> vitviz.analyze([photo], model)
ImageError: the image: ['photo.png'] found; $KINDS; of several images, vitviz.analyze_batch(images, model)
>>> vitviz.analyze(io.BytesIO(), model)
ImageError: the image: an empty file; $EXPECTED
>>> vitviz.analyze(torch.rand(3, 8, 8), model)
ImageError: tensor of shape (3, 8, 8) and type torch.float32: nothing says what black and white are; expected
    value_range, the values of black and white, such as value_range=(0, 1)
>>> vitviz.analyze(torch.rand(3, 8, 8), model, value_range=255)
ConfigError: value_range = 255: expected the values of black and white, such as (0, 1), (-1, 1) or (0, 255)
>>> vitviz.analyze({"imag": photo, "label": 1}, model)
ImageError: a row with 'imag' or 'label': no column 'image'; name that of the images, as by column='imag'; did you
    mean 'imag'?
>>> vitviz.analyze_batch(photo, model)
ConfigError: images: one str found; expected several, such as a list of paths; of a folder, [each.source for each in
    vitviz.read_items('photo.png')]
>>> vitviz.analyze_batch({"image": photo}, model)
ConfigError: images: one dict found; expected several, such as a list of paths

# What is no checkpoint or device.
>>> vitviz.load("")
CheckpointError: '': $NO_CHECKPOINT; $LISTED
>>> vitviz.load(model.network.state_dict())
CheckpointError: a dictionary, such as a state dict: it names no architecture; expected its module,
    vitviz.load(module) after module.load_state_dict(…), or its file, after torch.save(…, 'model.pth')
>>> vitviz.load(type(model.network))
CheckpointError: the class VisionTransformer: expected a module made of it, with weights, in evaluation mode
>>> analysis.relevance(class_idx=3)
MethodError: relevance has no parameter 'class_idx': expected 'target', 'query', 'start_layer' or 'end_layer'; did you
    mean 'target'?
>>> vitviz.load(None)
CheckpointError: None: $NO_CHECKPOINT; $LISTED
>>> vitviz.load("hf-hub:google/owl-eye")
CheckpointError: 'hf-hub:google/owl-eye': $NO_CHECKPOINT; of the hub, write 'hf:google/owl-eye'; $LISTED
>>> vitviz.load("https://huggingface.co/google/owl-eye")
CheckpointError: 'https://huggingface.co/google/owl-eye': $NO_CHECKPOINT; of the hub, write 'hf:google/owl-eye';
    $LISTED
"""


def _slips() -> list[tuple[str, type[VitvizError], str]]:
    """Code, error and sentence of each mistake."""
    found = []
    for each in f"\n{SESSION}".split("\n>>> ")[1:]:
        code, *answer = (line.strip() for line in each.splitlines() if not line.startswith("#"))
        kind, _, sentence = Template(" ".join(answer).strip()).substitute(TEXTS).partition(": ")
        found.append((code, getattr(vitviz, kind), sentence))
    return found


SLIPS = _slips()
