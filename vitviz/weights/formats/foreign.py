"""Files that hold no weights of torch or JAX's npz: what they are, and how to get weights that vitviz reads."""

from __future__ import annotations

EXPORTED = "a program made from a model: save the state_dict() of the original torch model"
TO_TORCH = "load it with its own package, and save the weights by name with torch.save or safetensors"
# What a file is, by its first bytes in small letters, and by the ending of its name.
FOREIGN: dict[str, tuple[tuple[bytes, ...], tuple[str, ...]]] = {
    f"HDF5, as Keras and TensorFlow save: {TO_TORCH}, or download the repository's model.safetensors": (
        (b"\x89hdf\r\n\x1a\n",),
        (".h5", ".hdf5"),
    ),
    f"Keras: {TO_TORCH}, or download the repository's model.safetensors": ((), (".keras",)),
    f"Flax's msgpack: {TO_TORCH}, or download the repository's model.safetensors": ((), (".msgpack",)),
    f"PaddlePaddle: {TO_TORCH}": ((), (".pdparams",)),
    "a git-lfs pointer, not the weights (`git lfs pull` fetches them)": ((b"version https://git-lfs",), ()),
    "a web page, not the weights: download the file itself, which may need you to sign in": (
        (b"<!doctype", b"<html", b"<head", b"<body"),
        (),
    ),
    "a single NumPy array: numpy.savez saves arrays by name": ((b"\x93numpy",), ()),
    "an archive: unpack it, and open the file inside": ((b"\x1f\x8b", b"\xfd7zxz", b"7z\xbc\xaf"), (".zip",)),
    "a LoRA adapter: peft.PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained('merged') writes "
    "the whole network": ((), ("adapter_model.safetensors", "adapter_model.bin")),
    "a part of a folder of torch.distributed.checkpoint: dcp_to_torch_save(folder, 'weights.pth') of "
    "torch.distributed.checkpoint.format_utils writes a plain file": ((), (".distcp",)),
    f"GGUF of llama.cpp, {EXPORTED}": ((b"gguf",), ()),
    f"ONNX, {EXPORTED}": ((), (".onnx",)),
    f"torch.export's, {EXPORTED}": ((), (".pt2",)),
    f"TensorFlow Lite, {EXPORTED}": ((), (".tflite",)),
    f"a TensorFlow or ONNX graph, {EXPORTED}": ((), (".pb",)),
    f"OpenVINO, {EXPORTED}": ((), (".xml",)),
    f"Core ML, {EXPORTED}": ((), (".mlmodel",)),
    f"TensorRT, {EXPORTED}": ((), (".engine", ".plan", ".trt")),
}


def foreign_format(name: str, start: bytes = b"") -> str | None:
    """What a file is that vitviz does not read, and the way to convert or fetch it; None if it is unknown.

    Args:
        name: of the file.
        start: its first bytes.
    """
    name, start = name.lower(), start.lstrip().lower()
    return next(
        (kind for kind, (starts, ends) in FOREIGN.items() if start.startswith(starts) or name.endswith(ends)), None
    )
