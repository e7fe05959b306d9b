"""Nothing in a checkpoint is executed, whatever its pickle calls."""

from __future__ import annotations

import copyreg
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.pickles import CONTAINERS, Payload, pickle_bytes, tensor_of, write_archive, write_series
from tests.support.weight_files import Tensors, check_same, expect_refusal, read_all, save_legacy, state, writers
from vitviz.weights.formats.files import open_weights

# Nothing is executed.


@pytest.mark.parametrize("write", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_call_is_refused_by_name_and_not_made(
    tmp_path: Path, write: Callable[[Path, bytes], object], protocol: int
) -> None:
    path, executed = tmp_path / "x.pth", tmp_path / "executed"
    content = pickle.dumps({"model": {"w": 1.5}, "extra": [Payload(executed)]}, protocol)
    write(path, content)
    bare = write is CONTAINERS["bare"] and protocol < 2
    with expect_refusal(
        "x.pth", "begins with" if bare else r"its pickle calls (posix|nt)\.mkdir, which is code; vitviz opens"
    ):
        open_weights(path)
    assert not executed.exists(), "the file was executed"
    # The payload is one that a careless loader executes.
    pickle.loads(content)
    assert executed.is_dir()


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


SYSTEM = r"calls os\.system, which is code"
OPCODES: dict[str, tuple[bytes, str]] = {
    "GLOBAL": (b"\x80\x02cos\nsystem\n.", SYSTEM),
    "INST": (b"(S'x'\nios\nsystem\n.", SYSTEM),
    "OBJ": (b"(cos\nsystem\nS'x'\no.", SYSTEM),
    "STACK_GLOBAL": (b"\x80\x04" + text("os") + text("system") + b"\x93.", SYSTEM),
    "STACK_GLOBAL from the memo": (
        b"\x80\x04" + text("system") + b"\x94" + text("os") + b"\x94" + b"00" + b"h\x01h\x00\x93.",
        SYSTEM,
    ),
    "STACK_GLOBAL from long texts": (
        b"\x80\x04X\x02\x00\x00\x00os\x8d" + struct.pack("<Q", 6) + b"system\x93.",
        SYSTEM,
    ),
    "STACK_GLOBAL from copies": (b"\x80\x04" + text("os") + b"2" + b"0" + text("system") + b"\x93.", SYSTEM),
    "STACK_GLOBAL of no texts": (b"\x80\x04K\x01K\x02\x93.", "damaged"),
    "a name with dots": (b"\x80\x04" + text("collections") + text("OrderedDict.__init__") + b"\x93.", "calls coll"),
    "a name with a control character": (b"\x80\x04" + text("os\x1b[31m\n") + text("x") + b"\x93.", r"calls 'os\\x1b"),
    "a name of 5,000 letters": (b"\x80\x02c" + b"o" * 5000 + b"\nx\n.", r"calls 'ooo.*\.\.\.ooo"),
    "a module of torch": (b"\x80\x02ctorch.nn.modules.linear\nLinear\n.", r"whole pickled model .*Linear"),
    "an extension": (b"\x80\x02\x82\x01.", "damaged"),
    "an id as text": (b"P0\n.", "damaged"),
    "a buffer outside": (b"\x80\x05\x97.", "damaged"),
    "a call of a dict": (b"\x80\x02})R.", "damaged"),
    "a call of a text": (b"\x80\x02X\x06\x00\x00\x00system)R.", "damaged"),
    "an item of a list": (b"\x80\x02]K\x00K\x01s.", "damaged"),
    "an item of a tensor": (pickle_bytes(tensor_of(4))[:-1] + b"K\x00K\x01s.", "damaged"),
    "an addition to a dict": (b"\x80\x02}K\x01a.", "damaged"),
    "an item without a value": (b"\x80\x02}(K\x01u.", "damaged"),
    "nothing": (b"\x80\x02.", "damaged"),
    "no end": (b"\x80\x02}", "damaged"),
    "an open mark": (b"\x80\x02}(.", "damaged"),
    "a mark that is not there": (b"\x80\x02t.", "damaged"),
    "a memo that is not there": (b"\x80\x02h\x07.", "damaged"),
    "an unknown opcode": (b"\x80\x02\xff.", "damaged"),
    "a text longer than the file": (b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.", "damaged"),
    "a number of a million digits": (b"\x80\x02L" + b"9" * 10**6 + b"L\n.", "damaged"),
    "a number of a million bytes": (b"\x80\x02\x8b" + struct.pack("<i", 10**6) + b"\x01" * 10**6 + b".", "damaged"),
}


@pytest.mark.parametrize("write", [write_archive, write_series], ids=["archive", "legacy"])
@pytest.mark.parametrize(("content", "found"), OPCODES.values(), ids=OPCODES)
def test_a_pickle_that_is_crafted_is_refused(
    tmp_path: Path, write: Callable[[Path, object], object], content: bytes, found: str
) -> None:
    write(tmp_path / "x.pth", content)
    with expect_refusal("x.pth", found):
        open_weights(tmp_path / "x.pth")


DANGEROUS = """
    builtins.eval builtins.exec builtins.getattr builtins.__import__ builtins.open builtins.map __builtin__.apply
    os.system nt.system posix.system subprocess.Popen importlib.import_module runpy._run_code types.CodeType
    functools.partial operator.attrgetter pickle.loads webbrowser.open ctypes.CDLL collections.namedtuple
    torch.load torch.hub.load torch.jit.load torch.serialization.load torch.storage._load_from_bytes torch.utils.data
    torch._utils._rebuild_wrapper_subclass torch._utils._import_dotted_name torch.package.importer
    numpy.load numpy.core.multiarray.fromfile numpy.f2py.crackfortran.getlincoef numpy.testing.runstring
"""


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_a_dangerous_name_is_refused(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    write_archive(tmp_path / "x.pth", b"\x80\x02c" + f"{module}\n{attribute}\n".encode() + b".")
    called = name.replace("__builtin__", "builtins")
    with expect_refusal("x.pth", f"its pickle calls {re.escape(called)}, which is code"):
        open_weights(tmp_path / "x.pth")


def test_an_extension_that_is_registered_is_not_called(tmp_path: Path) -> None:
    copyreg.add_extension("os", "getcwd", 1)
    try:
        write_archive(tmp_path / "x.pth", b"\x80\x02\x82\x01)R.")
        with expect_refusal("x.pth", "damaged"):
            open_weights(tmp_path / "x.pth")
    finally:
        copyreg.remove_extension("os", "getcwd", 1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("make", [Net, lambda: torch.nn.Linear(2, 2), lambda: {"model": Net(), "epoch": 1}])
@pytest.mark.parametrize("save", [torch.save, save_legacy])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_whole_model_is_refused_by_its_class(
    tmp_path: Path, make: Callable[[], object], save: Callable[[object, Path], None]
) -> None:
    save(make(), tmp_path / "x.pth")
    with expect_refusal(
        "x.pth", r"whole pickled model \(\S+\.(Net|Linear)\), which is code; .* the model's state_dict\(\)"
    ):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize("member", ["constants.pkl", "code/__torch__/clip/model.py"])
def test_a_program_is_refused(tmp_path: Path, member: str) -> None:
    write_archive(tmp_path / "ViT-B-32.pt", {"w": tensor_of(4)}, **{member: b"x"})
    with expect_refusal(
        "ViT-B-32.pt",
        r"a program \(TorchScript\).*; expected the safetensors version.*jit\.load\('ViT-B-32\.pt'\)\.state_dict\(\)",
    ):
        open_weights(tmp_path / "ViT-B-32.pt")


@writers
def test_nothing_that_unpickles_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    def used(*_: object, **__: object) -> None:
        raise AssertionError

    tensors = state()
    save(tensors, tmp_path / "file")
    for module, name in ((pickle, "Unpickler"), (pickle, "load"), (pickle, "loads"), (torch, "load"), (np, "load")):
        monkeypatch.setattr(module, name, used)
    check_same(read_all(open_weights(tmp_path / "file")), tensors)
