#!/usr/bin/env python3
"""Write photographs that no source of the run has, as image folders: outside.py GCOMPRIS STAMPS OUT

`GCOMPRIS` is the folder of `gcompris-qt-data` with its `.rcc` files (Qt's resources: "rcc" in Qt's documentation),
`STAMPS` that of `tuxpaint-stamps-default`, both as Debian packages unpack them. `OUT/photographs/test/CLASS/` gets
the photographs of the one and of `assets/`, `OUT/cutouts/test/CLASS/` the things of the other, laid on light grey: two
folders for `vitviz evaluate`. The classes are those of `photos.py`, given by looking at the pictures; what could be two
is left out.
"""

from __future__ import annotations

import argparse
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gcompris", type=Path)
    parser.add_argument("stamps", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()

    pictures = [entry for path in sorted(options.gcompris.rglob("*.rcc")) for entry in resources(path.read_bytes())]
    for name, content in pictures:
        if found := class_of(Path(name), PHOTOGRAPHS):
            # Two folders have a horse.
            file = f"{Path(name).parent.name}-{Path(name).stem}.png"
            _write(content, options.output / "photographs" / "test" / found / file)
    for found, name in OWN.items():
        _write((ASSETS / f"{name}.jpg").read_bytes(), options.output / "photographs" / "test" / found / f"{name}.png")
    for path in sorted(options.stamps.rglob("*.png")):
        if found := class_of(path, CUTOUTS):
            _write(path.read_bytes(), options.output / "cutouts" / "test" / found / path.name)

    for folder in sorted(options.output.glob("*/test")):
        count = sum(1 for _ in folder.rglob("*.png"))
        print(f"{folder.parent.name}: {count} pictures, {len(list(folder.iterdir()))} classes")


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


if __name__ == "__main__":
    main()
