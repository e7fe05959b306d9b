"""Files of other frameworks are called by name, with the way to weights that vitviz reads."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from tests.support.weight_files import expect_refusal
from vitviz.weights.formats.files import open_weights

HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(600)
ORIGINAL, OWN_PACKAGE = r"state_dict\(\) of the original", "load it with its own package, and save"
FILES: dict[str, tuple[bytes, str, str]] = {
    "model.h5": (HDF5, "HDF5, as Keras and TensorFlow save", OWN_PACKAGE),
    "weights.bin": (HDF5, "HDF5", "model.safetensors"),
    "model.gguf": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + bytes(600), "GGUF of llama.cpp", ORIGINAL),
    "model.onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.4.0:" + bytes(600), "ONNX", ORIGINAL),
    "model.tflite": (b"\x1c\0\0\0TFL3" + bytes(600), "TensorFlow Lite", ORIGINAL),
    "flax_model.msgpack": (b"\x81\xa6params\x82\xa7encoder" + bytes(600), "Flax", OWN_PACKAGE),
    "model.xml": (b'<?xml version="1.0"?>\n<net name="vit" version="11">', "OpenVINO", ORIGINAL),
    "model.mlmodel": (b"\x08\x01" + bytes(600), "Core ML", ORIGINAL),
    "model.engine": (b"ptrt" + bytes(600), "TensorRT", ORIGINAL),
    "saved_model.pb": (b"\x0a\x01" + bytes(600), "TensorFlow", ORIGINAL),
    "vit.tar.gz": (b"\x1f\x8b\x08" + bytes(600), "an archive", "unpack it"),
    "page.pth": (b"<!DOCTYPE html><html>Sign in</html>", "a web page", "download the file itself"),
    "pointer.safetensors": (b"version https://git-lfs.github.com/spec/v1\noid", "git-lfs pointer", "git lfs pull"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_framework_is_called_by_name_with_a_way(tmp_path: Path, name: str) -> None:
    content, kind, way = FILES[name]
    (tmp_path / name).write_bytes(content)
    with expect_refusal(name, f"{kind}.*{way}"):
        open_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "found"), [("model.keras", "Keras.*own package"), ("vit.zip", "unpack it")], ids=["Keras", "an archive"]
)
def test_a_zip_archive_of_something_else_is_called_by_name(tmp_path: Path, name: str, found: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("vit.pth", "{}")
    with expect_refusal(name, found):
        open_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "found"),
    [("tf_model.h5", "only 'tf_model.h5' .*TensorFlow"), ("saved_model.pb", "TensorFlow or ONNX graph")],
    ids=str,
)
def test_a_folder_of_another_framework_is_called_by_name(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / name).write_bytes(HDF5)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with expect_refusal(tmp_path.name, found):
        open_weights(tmp_path)
