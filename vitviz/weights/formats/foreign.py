"""Files that hold no weights of torch or JAX's npz: what they are, and how to get weights that vitviz reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

START_BYTES = 512
TO_TORCH = "load it with its own package, and save the weights by name with torch.save or safetensors"
FROM_HUB = "or download the repository's model.safetensors"
KERAS = f"{TO_TORCH}, {FROM_HUB}; transformers below 5 converts its own by from_pretrained(…, from_tf=True)"
FLAX = f"{TO_TORCH}, {FROM_HUB}; transformers below 5 converts its own by from_pretrained(…, from_flax=True)"
EXPORTED = "a program made from a model: save the state_dict() of the original torch model"
UNPACK = "unpack it, and open the file inside"
ONNX, OPENVINO, HDF5 = f"ONNX, {EXPORTED}", f"OpenVINO, {EXPORTED}", f"HDF5, as Keras and TensorFlow save: {KERAS}"

# By the first bytes of a file.
BEGINNINGS: dict[bytes, str] = {
    b"\x89HDF\r\n\x1a\n": HDF5,
    b"GGUF": f"GGUF of llama.cpp, {EXPORTED}",
    **dict.fromkeys((b"lmgg", b"tjgg", b"fmgg"), f"GGML of llama.cpp, {EXPORTED}"),
    b"version https://git-lfs": "a git-lfs pointer, not the weights (`git lfs pull` fetches them)",
    b"\x93NUMPY": "a single NumPy array: numpy.savez saves arrays by name",
    b"\x1f\x8b": f"a gzip archive: {UNPACK}",
    b"\xfd7zXZ": f"an xz archive: {UNPACK}",
    b"7z\xbc\xaf\x27\x1c": f"a 7z archive: {UNPACK}",
    b"Rar!": f"a RAR archive: {UNPACK}",
    b"(\xb5/\xfd": f"a Zstandard archive: {UNPACK}",
}
# By the ending of a file's name, for formats whose first bytes are not their own.
ENDINGS: dict[str, str] = {
    ".onnx": ONNX,
    **dict.fromkeys((".h5", ".hdf5"), HDF5),
    ".keras": f"Keras: {KERAS}",
    ".tflite": f"TensorFlow Lite, {EXPORTED}",
    ".msgpack": f"Flax's msgpack: {FLAX}",
    ".pb": f"a TensorFlow or ONNX graph, {EXPORTED}",
    ".index": f"a TensorFlow checkpoint: {KERAS}",
    ".mlmodel": f"Core ML, {EXPORTED}",
    ".pte": f"ExecuTorch, {EXPORTED}",
    **dict.fromkeys((".engine", ".plan", ".trt"), f"TensorRT, {EXPORTED}"),
    ".pdparams": f"PaddlePaddle: {TO_TORCH}",
    ".params": f"MXNet: {TO_TORCH}",
    ".gguf": BEGINNINGS[b"GGUF"],
}
# First bytes of texts in msgpack.
MSGPACK_TEXTS = {bytes([code]) for code in (*range(0xA0, 0xC0), 0xD9, 0xDA)}


def foreign_format(name: str, start: bytes) -> str | None:
    """What a file is that vitviz does not read, and the way to convert or fetch it; None if it is unknown.

    Args:
        name: of the file.
        start: its first :data:`START_BYTES` bytes.
    """
    for beginning, format_name in BEGINNINGS.items():
        if start.startswith(beginning):
            return format_name
    text = start.lstrip().lower()
    if start[4:8] == b"TFL3":
        return ENDINGS[".tflite"]
    if start[257:262] == b"ustar":
        return f"a tar archive: {UNPACK}"
    if text.startswith(b"<?xml") and b"<net" in text:
        return OPENVINO
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        return "a web page, not the weights: download the file itself, which may need you to sign in"
    # Protocol buffers: the version of ONNX, then the name of its producer, of its domain or its graph.
    if start[:1] == b"\x08" and start[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x3a") and 2 < start[1] < 32:
        return ONNX
    # A map whose first key is text; a pickle begins with 0x80.
    key_place = 1 if 0x81 <= start[0] <= 0x8F else {0xDE: 3, 0xDF: 5}.get(start[0], len(start))
    if start[key_place : key_place + 1] in MSGPACK_TEXTS:
        return ENDINGS[".msgpack"]
    return ENDINGS.get(Path(name).suffix.lower())


def foreign_zip(members: Iterable[str]) -> str | None:
    """The same for a zip archive, by the names of its members."""
    names = {member.rpartition("/")[2] for member in members}
    if "model.weights.h5" in names or {"config.json", "metadata.json"} <= names:
        return ENDINGS[".keras"]
    if any(name.lower().endswith((".safetensors", ".pth", ".pt", ".ckpt", ".bin")) for name in names):
        return f"an archive: {UNPACK}"
    return None


def foreign_file(folder: Path) -> tuple[str, str] | None:
    """The first file of another format in a folder without weights, and what it is; None if there is none."""
    if (folder / "saved_model.pb").is_file():
        return "saved_model.pb", f"a SavedModel of TensorFlow: {KERAS}"
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in ENDINGS and file.is_file():
            with file.open("rb") as stream:
                start = stream.read(START_BYTES)
            format_name = foreign_format(file.name, start) if start else None
            if format_name is not None:
                return file.name, format_name
    return None
