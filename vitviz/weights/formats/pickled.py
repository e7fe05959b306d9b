"""The pickle of a torch checkpoint, read as data: what it would call is noted down or refused, and never called.

Not ``torch.load(weights_only=True)``, through which a crafted file corrupts memory before torch 2.10 (CVE-2026-24747).
It also makes tensors of the size that a file claims, reads a legacy file whole, and knows no pickle protocol after 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import plain
from vitviz.weights.formats.opcodes import ERRORS, VALUE, Content, Data
from vitviz.weights.formats.stack_machine import StackMachine, filled

MAX_PICKLE = 64 * 2**20
MAX_TENSORS = 100_000
# Some 40 for each tensor. It bounds the time and the memory that a pickle takes.
MAX_STEPS = 2_000_000
MAX_DIMENSIONS = 64
MAX_ARGUMENTS = 16

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}

STORAGES = {
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.QInt8Storage": "qint8",
    "torch.QUInt8Storage": "quint8",
    "torch.QInt32Storage": "qint32",
    "torch.UntypedStorage": "uint8",
    "torch.storage.UntypedStorage": "uint8",
}
# Every other name that a pickle may hold, by module: how torch writes tensors, and values that are no tensors.
NAMES = {
    "torch": "Size Tensor device per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
    "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor _rebuild_meta_tensor_no_storage",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.nn.parameter": "Parameter",
    "torch.serialization": "_get_layout",
    "collections": "OrderedDict Counter",
    "argparse": "Namespace",
    "builtins": "bytearray complex frozenset object set",
    "_codecs": "encode",
    "copyreg": "_reconstructor",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
}
# As Python 2, and with it the protocols up to 2, call them.
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}


@dataclass(frozen=True, eq=False)
class Storage:
    """A run of numbers in the file, which tensors are views of."""

    key: str
    dtype: str
    bytes: int


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """Where a tensor stands in its storage; offset and strides count elements of its own dtype."""

    shape: tuple[int, ...]
    dtype: str
    storage: Storage | None = None
    offset: int = 0
    strides: tuple[int, ...] = ()
    # What it is where it is no dense tensor with values of its own: "sparse", "quantised", …
    special: str = ""

    @property
    def floating(self) -> bool:
        return not self.special and DTYPES[self.dtype].is_floating_point


@dataclass(frozen=True, eq=False)
class _Name:
    """A name that the pickle would import."""

    name: str


ALLOWED = {
    name: _Name(name)
    for name in (
        *STORAGES,
        *(f"torch.{dtype}" for dtype in DTYPES),
        *(f"{module}.{name}" for module, names in NAMES.items() for name in names.split()),
    )
}


class PickleReader:
    """Reads the pickles of one file.

    Attributes:
        storages: every storage that the pickles name, by its key.
        patience: how many times more steps than usual all of them may take.
    """

    patience = 1

    def __init__(self, file: str) -> None:
        """``file`` is what messages call the file."""
        self.storages: dict[str, Storage] = {}
        self._file = file
        self._tensors = 0
        self._steps = 0

    def read(self, content: Content, position: int = 0) -> tuple[object, int]:
        """The value of the pickle that begins at a position, and the position behind it.

        Lists, tuples, dicts, texts and numbers come back as they are, tensors as :class:`StoredTensor`, everything
        else as a value without content. A dict has its texts as keys; every other key is an object of its own.

        Raises:
            CheckpointError: the pickle would call something that is not allowed, is damaged, or is beyond the bounds.
        """
        machine = StackMachine(self, content, position)
        try:
            return machine.run(), machine.position
        # Whatever a damaged or a crafted pickle trips over.
        except (*ERRORS, TypeError, AttributeError, RecursionError):
            raise CheckpointError(
                f"{self._file}: its pickle is damaged, cut short, too long or not of torch.save"
            ) from None

    def count(self, steps: int) -> None:
        """Take note of so many steps.

        Raises:
            CheckpointError: there are too many.
        """
        self._steps += steps
        most = self.patience * MAX_STEPS
        if self._steps > most:
            raise CheckpointError(f"{self._file}: its pickle takes more than {most:,} steps; expected a checkpoint")

    def name(self, module: object, attribute: object, rest_of_pickle: Callable[[], Data]) -> _Name:
        """What stands for an allowed name.

        Raises:
            CheckpointError: it is not allowed.
        """
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError
        name = f"{RENAMED.get(module, module)}.{attribute}"
        if name in ALLOWED:
            return ALLOWED[name]
        # What is left of the pickle tells whether this is the class of a model.
        rest = rest_of_pickle()
        if module.startswith("torch.nn.modules.") or (b"_parameters" in rest and b"_buffers" in rest):
            raise CheckpointError(
                f"{self._file}: it holds a whole pickled model ({plain(name)}), which is code; vitviz opens only "
                "tensors and plain values, such as the model's state_dict()"
            )
        raise CheckpointError(
            f"{self._file}: its pickle calls {plain(name)}, which is code; vitviz opens only tensors and plain values "
            "(safetensors is always safe)"
        )

    def storage(self, identity: object) -> Storage:
        """The storage that a pickle names."""
        if not isinstance(identity, tuple) or len(identity) not in (5, 6):
            raise ValueError
        what, kind, key, _, elements, *view = identity
        # A view of another storage, as torch before 1.0 wrote it, is not known here.
        if what != "storage" or view not in ([], [None]):
            raise ValueError
        if not isinstance(kind, _Name) or not isinstance(key, str):
            raise ValueError
        dtype = STORAGES[kind.name]
        storage = Storage(key, dtype, whole_sizes((elements,))[0] * DTYPES[dtype].itemsize)
        self.storages.setdefault(key, storage)
        return storage

    def make(self, function: object, arguments: object) -> object:
        """What an allowed call would return, as far as it matters."""
        # A call may hold a call, which may hold another.
        self.count(4)
        if not isinstance(function, _Name) or not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
            raise ValueError
        match function.name.rpartition(".")[2]:
            case "OrderedDict" | "Counter":
                pairs = arguments[0] if arguments else []
                if not isinstance(pairs, list | dict):
                    raise ValueError
                # The same one may be copied many times over; a pair is worth as many opcodes as it takes time.
                self.count(16 * len(pairs))
                pairs = pairs.items() if isinstance(pairs, dict) else map(_pair, pairs)
                return filled({}, [part for pair in pairs for part in pair])
            case "Size" | "_rebuild_parameter" | "_rebuild_parameter_with_state":
                return arguments[0]
            case "_rebuild_from_type_v2":
                return self.make(arguments[0], arguments[2])
            case "_rebuild_tensor" | "_rebuild_tensor_v2":
                # The seventh: a bit that says that the values are conjugated or negated.
                return self._tensor(arguments, special="lazily negated" if any(arguments[6:]) else "")
            case "_rebuild_tensor_v3":
                return self._tensor(arguments, arguments[6], "lazily negated" if any(arguments[7:]) else "")
            case "_rebuild_qtensor":
                return self._tensor(arguments, special="quantised")
            case "_rebuild_sparse_tensor":
                parts = arguments[1][:MAX_ARGUMENTS]
                values = [part for part in parts if isinstance(part, StoredTensor)][-1]
                shape = next(part for part in parts if isinstance(part, tuple))
                return self._counted(StoredTensor(whole_sizes(shape), values.dtype, special="sparse"))
            case "_rebuild_meta_tensor_no_storage":
                return self._counted(StoredTensor(whole_sizes(arguments[1]), dtype_name(arguments[0]), special="meta"))
        return VALUE

    def build(self, value: object, attributes: object) -> None:
        """Nothing: attributes are those of a Namespace, or torch's _metadata."""

    def _tensor(self, arguments: tuple[object, ...], dtype: object = None, special: str = "") -> StoredTensor:
        storage, offset, shape, strides = arguments[:4]
        if not isinstance(storage, Storage):
            raise ValueError
        kind = storage.dtype if dtype is None else dtype_name(dtype)
        (offset,) = whole_sizes((offset,))
        tensor = StoredTensor(whole_sizes(shape), kind, storage, offset, whole_sizes(strides), special)
        if len(tensor.shape) != len(tensor.strides):
            raise ValueError
        return self._counted(tensor)

    def _counted(self, tensor: StoredTensor) -> StoredTensor:
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise CheckpointError(f"{self._file}: more than {MAX_TENSORS:,} tensors; expected a checkpoint")
        return tensor


def dtype_name(value: object) -> str:
    """A dtype as torch names it, without "torch."."""
    if not isinstance(value, _Name) or value.name.removeprefix("torch.") not in DTYPES:
        raise ValueError
    return value.name.removeprefix("torch.")


def whole_sizes(values: object) -> tuple[int, ...]:
    """A tuple of lengths or places."""
    if not isinstance(values, tuple) or len(values) > MAX_DIMENSIONS:
        raise ValueError
    if any(type(value) is not int or not 0 <= value < 2**63 for value in values):
        raise ValueError
    return values


def _pair(pair: object) -> Sequence[object]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError
    return pair
