#!/usr/bin/env python3
"""Write the photographs of the run as an image folder: photos.py PHOTOS.npz OUT [--cifar10 CIFAR10_JPEG.npz]

`PHOTOS.npz` holds WebP files and the labels that their sources gave them. Each photograph of the classes below becomes
`OUT/{train,test}/CLASS/INDEX.webp`; the test photographs of other labels become `OUT/strangers/LABEL/INDEX.webp`.

One source has photographs of 84 pixels with colours of some ten blocks along a side, and the others have sharper ones
of other classes: a network that sees both takes whatever has sharp colours for one of these. So the sharper ones are
brought to 84 pixels as that source did it; then the colours of every training photograph are reduced to a few blocks,
and sharpened again by chance along the edges of its brightness; and it gets a size and a quality by chance.

Birds are of nine kinds there, and dogs mostly of the pages of breeders: CIFAR-10's training images add more of six
classes. They have 32 pixels, so a part of all photographs is brought down to as few before it is written.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import uniform_filter

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
    known = [numbers[source] for sources in CLASSES.values() for source in sources.split()]
    strangers = np.flatnonzero(test & ~np.isin(label, known))
    random = np.random.default_rng(0)
    for index in strangers:
        # A label is SOURCE/NAME.
        folder = out / "strangers" / Path(str(archive["labels"][label[index]])).name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:05d}.webp").write_bytes(data[offset[index] : offset[index + 1]].tobytes())
    print(f"{len(strangers):,} strangers of {len(numbers) - len(known)} labels")
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cifar10", type=Path, default=None)
    write_folder(**vars(parser.parse_args()))
