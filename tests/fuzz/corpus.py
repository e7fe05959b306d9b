"""All inputs that once caused harm, as makers of files of any size, with their expected outcomes."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors.torch import save

from tests.support.hostile_pieces import PICTURE, deflated_zeros, jpeg_with, png_with, segment
from tests.support.image_files import chunk, encoded

PRIME = 2**61 - 1
SCANS = encoded(PICTURE, "JPEG", progressive=True)
LAST_SCAN = SCANS.rindex(b"\xff\xda")


# The name of an input that is no file, but a text in the JSON of a request.
TEXT = ""


class Hurt(NamedTuple):
    """A file that once took too long or too much.

    Args:
        file: its name; :data:`TEXT` for a text in UTF-8.
        make: makes a file of about the given number of bytes.
        size: in bytes.
        options: options to open a checkpoint with.
    """

    file: str
    make: Callable[[int], bytes]
    size: int = 200_000
    options: Mapping[str, Any] = MappingProxyType({})


def archive(pickled: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr(zipfile.ZipInfo("archive/data.pkl"), pickled)
        # Without it, torch reads nothing.
        packed.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
    return stream.getvalue()


def pickle_of(body: Callable[[int], bytes], begin: bytes = b"", end: bytes = b"") -> Callable[[int], bytes]:
    return lambda size: archive(b"\x80\x02" + begin + body(size) + end + b".")


def long_number(number: int) -> bytes:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def colliding_keys(size: int) -> bytes:
    return b"".join(long_number(k * PRIME + 7) + b"N" for k in range(1, size // 12))


def colliding_places(size: int) -> bytes:
    return b"".join(b"p%d\n" % (k * PRIME + 7) for k in range(1, size // 22))


def nested_calls(size: int) -> bytes:
    """A pickle of deeply nested calls."""
    inner = b"ctorch._tensor\n_rebuild_from_type_v2\nq\x000ctorch\nSize\nNN\x85\x87" + b"q\x010h\x00Nh\x01\x87" * 200
    return inner + b"q\x020" + b"h\x00h\x02R0" * (size // 6) + b"N"


def safetensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def dimensions(size: int) -> bytes:
    shape = b"0" + b",2" * (size // 2)
    return safetensors(b'{"w":{"dtype":"F32","shape":[%s],"data_offsets":[0,0]}}' % shape)


def many_fields(size: int) -> bytes:
    """An archive whose members have as many extra fields as possible."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for index in range(size // 130_000 + 1):
            member = zipfile.ZipInfo(f"{index}.npy")
            member.extra = b"\x99\x99\0\0" * 16_000
            packed.writestr(member, b"")
    return stream.getvalue()


def many_headers(size: int) -> bytes:
    """Arrays with headers that are slow to parse as Python."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 3_000 + b")}\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for index in range(size // len(header) + 1):
            packed.writestr(zipfile.ZipInfo(f"{index}.npy"), b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header)
    return stream.getvalue()


def layers_of(width: int, count: int, tensor: Callable[[tuple[int, ...]], torch.Tensor]) -> dict[str, torch.Tensor]:
    """A network with timm's names, whose tensors are made by a function of their shape."""
    shapes: dict[str, tuple[int, ...]] = {f"norm{index}.{name}": (width,) for index in (1, 2) for name in PARAMETERS}
    for name, (rows, columns) in {
        "attn.qkv": (3, 1),
        "attn.proj": (1, 1),
        "mlp.fc1": (4, 1),
        "mlp.fc2": (1, 4),
    }.items():
        shapes |= {f"{name}.weight": (rows * width, columns * width), f"{name}.bias": (rows * width,)}
    state = {"cls_token": torch.zeros(1, 1, width), "pos_embed": torch.zeros(1, 17, width)}
    state |= {"patch_embed.proj.weight": torch.zeros(width, 3, 4, 4), "patch_embed.proj.bias": torch.zeros(width)}
    state |= {f"blocks.{index}.{key}": tensor(shape) for index in range(count) for key, shape in shapes.items()}
    return state | {f"norm.{name}": torch.zeros(width) for name in PARAMETERS}


def saved(state: dict[str, torch.Tensor]) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def shared_layers(size: int) -> bytes:
    """A hundred layers that share their tensors; every other is a sixth of the size."""
    return saved(layers_of(2 * int((size / 200) ** 0.5), 100, cache(torch.zeros)))


def scattered_layers(size: int) -> bytes:
    """Layers whose tensors are scattered over one storage, each spanning all of it."""
    numbers = torch.zeros(size // 4)

    def scattered(shape: tuple[int, ...]) -> torch.Tensor:
        return numbers.as_strided(shape, [len(numbers) // len(shape) // length for length in shape])

    return saved(layers_of(8, size // 20_000, scattered))


def long_header(size: int) -> bytes:
    """Small tensors behind a header that is mostly one text."""
    return save(layers_of(8, size // 20_000, torch.zeros), {"comment": "x" * (size // 2)})


PARAMETERS = ("weight", "bias")
# Facts that a file of such layers does not state.
OPENS = {"family": "timm", "heads": 2, "activation": "gelu", "pooling": "cls", "norm_epsilon": 1e-6}
OPENS |= {"final_norm": "before pooling", "normalisation": "half", "image_size": 16}
OPENS |= {"position_rule": "bicubic antialiased"}
CORPUS: dict[str, Hurt] = {
    "padding before a marker": Hurt("x.jpg", lambda size: b"\xff\xd8\xff\xe0\0\2" + b"\xff" * size),
    "padding between scans": Hurt(
        "x.jpg", lambda size: SCANS[:LAST_SCAN] + b"\xff" * size + SCANS[LAST_SCAN:], 4_000_000
    ),
    "components": Hurt(
        "x.jpg",
        lambda size: jpeg_with(*[segment(0xC0, b"\x08\0\x20\0\x20\x03" + b"\1\x11\0" * 21_000)] * (size // 63_000)),
        4_000_000,
    ),
    "profiles": Hurt(
        "x.png",
        lambda size: png_with(chunk(b"iCCP", b"x\0\0" + deflated_zeros(2**20 - 1)) * (size // 4_000)),
        4_000_000,
    ),
    # The file chooses numbers that are keys of a dict, and collide.
    "keys that collide": Hurt("x.pth", pickle_of(colliding_keys, b"}(", b"u")),
    "places in the memo that collide": Hurt("x.pth", pickle_of(colliding_places, b"N")),
    "a place in the memo far away": Hurt("x.pth", pickle_of(lambda size: b"Nr\xff\xff\xff\x7f")),
    "names": Hurt("x.pth", pickle_of(lambda size: b"ctorch\nSize\n" * (size // 12))),
    "more steps than any": Hurt("x.pth", pickle_of(lambda size: b"N" * size), 2_100_000),
    "lists": Hurt("x.pth", pickle_of(lambda size: b"]" * size)),
    "tuples in tuples": Hurt("x.pth", pickle_of(lambda size: b"\x85" * size, b"N")),
    "calls of calls": Hurt("x.pth", pickle_of(nested_calls)),
    "copies of pairs": Hurt(
        "x.pth",
        pickle_of(
            lambda size: b"](" + b"NN\x86" * (size // 8) + b"eq\1" + b"h\0h\1\x85R" * (size // 12),
            b"ccollections\nOrderedDict\nq\0",
        ),
    ),
    "layers that share a tensor": Hurt("x.pth", shared_layers, 20_000, OPENS),
    "numbers here and there": Hurt("x.pth", scattered_layers, 1_000_000, OPENS),
    "a long header": Hurt("x.safetensors", long_header, 500_000, OPENS),
    # The product of the dimensions has millions of digits.
    "dimensions": Hurt("x.safetensors", dimensions),
    "fields of a member": Hurt("x.npz", many_fields, 1_000_000),
    "headers of arrays": Hurt("x.npz", many_headers, 500_000),
    # Patterns that try to start at every position.
    "an address of addresses": Hurt(
        TEXT, lambda size: b"https://x/" + b"gradio_api/file=/" * (size // 17) + b"\n", 100_000
    ),
    "schemes": Hurt(TEXT, lambda size: b"https://" * (size // 8), 100_000),
    "digits of a misspelt name": Hurt(TEXT, lambda size: b"1" * size, 100_000),
}
