"""Files that hold no weights of torch or JAX's npz: what they are, and how to get weights that vitviz reads."""

from __future__ import annotations

from pathlib import Path

START_BYTES = 512
TO_TORCH = "load it with its own package, and save the weights by name with torch.save or safetensors"
KERAS = f"{TO_TORCH}, or download the repository's model.safetensors"
EXPORTED = "a program made from a model: save the state_dict() of the original torch model"
UNPACK = "unpack it, and open the file inside"
# By the first bytes of a file.
BEGINNINGS: dict[bytes, str] = {
    b"\x89HDF\r\n\x1a\n": f"HDF5, as Keras and TensorFlow save: {KERAS}",
    b"GGUF": f"GGUF of llama.cpp, {EXPORTED}",
    b"version https://git-lfs": "a git-lfs pointer, not the weights (`git lfs pull` fetches them)",
    b"\x93NUMPY": "a single NumPy array: numpy.savez saves arrays by name",
    b"\x1f\x8b": f"a gzip archive: {UNPACK}",
    b"\xfd7zXZ": f"an xz archive: {UNPACK}",
    b"7z\xbc\xaf\x27\x1c": f"a 7z archive: {UNPACK}",
    **dict.fromkeys(
        (b"<!doctype", b"<html", b"<head", b"<body"),
        "a web page, not the weights: download the file itself, which may need you to sign in",
    ),
}
# By the ending of a file's name.
ENDINGS: dict[str, str] = {
    ".onnx": f"ONNX, {EXPORTED}",
    **dict.fromkeys((".h5", ".hdf5"), BEGINNINGS[b"\x89HDF\r\n\x1a\n"]),
    ".keras": f"Keras: {KERAS}",
    ".tflite": f"TensorFlow Lite, {EXPORTED}",
    ".msgpack": f"Flax's msgpack: {KERAS}",
    ".pb": f"a TensorFlow or ONNX graph, {EXPORTED}",
    ".xml": f"OpenVINO, {EXPORTED}",
    ".mlmodel": f"Core ML, {EXPORTED}",
    **dict.fromkeys((".engine", ".plan", ".trt"), f"TensorRT, {EXPORTED}"),
    ".pdparams": f"PaddlePaddle: {TO_TORCH}",
    ".tar": f"a tar archive: {UNPACK}",
}


def foreign_format(name: str, start: bytes) -> str | None:
    """What a file is that vitviz does not read, and the way to convert or fetch it; None if it is unknown.

    Args:
        name: of the file.
        start: its first :data:`START_BYTES` bytes.
    """
    starts = (start, start.lstrip().lower())
    found = (kind for beginning, kind in BEGINNINGS.items() if any(each.startswith(beginning) for each in starts))
    return next(found, ENDINGS.get(Path(name).suffix.lower()))
