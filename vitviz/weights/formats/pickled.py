"""Read the pickle of a torch checkpoint as data. Its calls are recorded or refused, and never made.

Before torch 2.10, a crafted file corrupts memory through ``torch.load(weights_only=True)`` (CVE-2026-24747). It also
allocates tensors of the size that a file claims, reads a legacy file whole, and supports no pickle protocol after 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import plain
from vitviz.weights.formats.opcodes import ERRORS, VALUE, Buffer, Data
from vitviz.weights.formats.stack_machine import StackMachine, update_dict

MAX_PICKLE_BYTES = 64 * 2**20
MAX_TENSORS = 100_000
# Limits the time and memory of a pickle; a tensor takes about 40 steps.
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
# The other names that a pickle may have, by module: how torch writes tensors, and values that are no tensors.
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
# The names in Python 2, which protocols up to 2 use.
PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


@dataclass(frozen=True, eq=False)
class Storage:
    """A run of numbers in the file; tensors are views of it."""

    key: str
    dtype: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor's view of its storage; offset and strides count elements of its own dtype."""

    shape: tuple[int, ...]
    dtype: str
    storage: Storage | None = None
    offset: int = 0
    strides: tuple[int, ...] = ()
    # The kind of a tensor that is not dense or has no values of its own: "sparse", "quantised", …
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


class ForbiddenNameError(CheckpointError):
    """A pickle that holds an object of a class that is no part of tensors and plain values."""


class PickleReader:
    """Reads the pickles of one file.

    Attributes:
        storages: every storage that the pickles name, by its key.
        step_factor: by which the limit of steps is multiplied.
    """

    step_factor = 1

    def __init__(self, file: str) -> None:
        """``file`` is the name of the file in messages."""
        self.storages: dict[str, Storage] = {}
        self._file = file
        self._tensors = 0
        self._steps = 0

    def read(self, content: Buffer, position: int = 0) -> tuple[object, int]:
        """The value of the pickle at a position, and the position behind it.

        Lists, tuples, dicts, texts and numbers are returned as they are, tensors as :class:`StoredTensor`, and all else
        as :data:`~vitviz.weights.formats.opcodes.VALUE`. Keys of a dict that are not texts are
        :class:`~vitviz.weights.formats.stack_machine.NonTextKey`.

        Raises:
            CheckpointError: the pickle makes a forbidden call, is damaged, or exceeds a limit.
        """
        machine = StackMachine(self, content, position)
        try:
            return machine.run(), machine.position
        # A damaged or crafted pickle raises any of these.
        except (*ERRORS, TypeError, AttributeError, RecursionError):
            raise CheckpointError(
                f"{self._file}: its pickle is damaged, cut short, too long or not of torch.save"
            ) from None

    def count(self, steps: int) -> None:
        """Count steps against the limit.

        Raises:
            CheckpointError: there are too many.
        """
        self._steps += steps
        max_steps = self.step_factor * MAX_STEPS
        if self._steps > max_steps:
            raise CheckpointError(
                f"{self._file}: its pickle takes more than {max_steps:,} steps; expected a checkpoint"
            )

    def name(self, module: object, attribute: object, rest_of_pickle: Callable[[], Data]) -> _Name:
        """The placeholder of an allowed name.

        Raises:
            ForbiddenNameError: it is not allowed.
        """
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError
        name = f"{PYTHON_2_MODULES.get(module, module)}.{attribute}"
        if name in ALLOWED:
            return ALLOWED[name]
        # The rest of the pickle tells whether the name is the class of a model.
        rest = rest_of_pickle()
        if module.startswith("torch.nn.modules.") or (b"_parameters" in rest and b"_buffers" in rest):
            raise ForbiddenNameError(
                f"{self._file}: it holds a whole pickled model ({plain(name)}), which is code; vitviz opens only "
                "tensors and plain values, such as the model's state_dict()"
            )
        raise ForbiddenNameError(
            f"{self._file}: its pickle calls {plain(name)}, which is code; vitviz opens only tensors and plain values, "
            "such as the model's state_dict() (safetensors is always safe)"
        )

    def storage(self, identity: object) -> Storage:
        """The storage that a pickle names."""
        if not isinstance(identity, tuple) or len(identity) not in (5, 6):
            raise ValueError
        tag, kind, key, _, elements, *view = identity
        # Views of other storages, as torch before 1.0 wrote them, are not supported.
        if tag != "storage" or view not in ([], [None]):
            raise ValueError
        if not isinstance(kind, _Name) or not isinstance(key, str):
            raise ValueError
        dtype = STORAGES[kind.name]
        storage = Storage(key, dtype, whole_sizes((elements,))[0] * DTYPES[dtype].itemsize)
        self.storages.setdefault(key, storage)
        return storage

    def call(self, function: object, arguments: object) -> object:
        """The placeholder of what an allowed call would return."""
        # Calls may be nested.
        self.count(4)
        if not isinstance(function, _Name) or not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
            raise ValueError
        match function.name.rpartition(".")[2]:
            case "OrderedDict" | "Counter":
                pairs = arguments[0] if arguments else []
                if not isinstance(pairs, list | dict):
                    raise ValueError
                # A pickle may copy the same dict many times, and copying a pair takes as long as 16 opcodes.
                self.count(16 * len(pairs))
                pairs = pairs.items() if isinstance(pairs, dict) else map(_pair, pairs)
                return update_dict({}, [item for pair in pairs for item in pair])
            case "Size" | "_rebuild_parameter" | "_rebuild_parameter_with_state":
                return arguments[0]
            case "_rebuild_from_type_v2":
                return self.call(arguments[0], arguments[2])
            case "_rebuild_tensor" | "_rebuild_tensor_v2":
                # The seventh argument has the bits for lazy conjugation and negation.
                return self._tensor(arguments, special="lazily negated" if any(arguments[6:]) else "")
            case "_rebuild_tensor_v3":
                return self._tensor(arguments, arguments[6], "lazily negated" if any(arguments[7:]) else "")
            case "_rebuild_qtensor":
                return self._tensor(arguments, special="quantised")
            case "_rebuild_sparse_tensor":
                fields = arguments[1][:MAX_ARGUMENTS]
                values = [field for field in fields if isinstance(field, StoredTensor)][-1]
                shape = next(field for field in fields if isinstance(field, tuple))
                return self._counted(StoredTensor(whole_sizes(shape), values.dtype, special="sparse"))
            case "_rebuild_meta_tensor_no_storage":
                return self._counted(StoredTensor(whole_sizes(arguments[1]), dtype_name(arguments[0]), special="meta"))
        return VALUE

    def build(self, value: object, attributes: object) -> None:
        """Ignore the attributes, which belong to a Namespace or are torch's _metadata."""

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
    """The name of a dtype without "torch."."""
    if not isinstance(value, _Name) or value.name.removeprefix("torch.") not in DTYPES:
        raise ValueError
    return value.name.removeprefix("torch.")


def whole_sizes(values: object) -> tuple[int, ...]:
    """A tuple of whole numbers: lengths, offsets or strides.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(values, tuple) or len(values) > MAX_DIMENSIONS:
        raise ValueError
    if any(type(value) is not int or not 0 <= value < 2**63 for value in values):
        raise ValueError
    return values


def _pair(pair: object) -> Sequence[object]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError
    return pair
