"""A map as rows of numbers, for NumPy, torch and pandas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from vitviz.visualization.arithmetic import Arithmetic


class Rows(Arithmetic):
    """What makes an array, a tensor, a list or a table of a :class:`vitviz.Heatmap`."""

    @property
    def values(self) -> torch.Tensor:
        """The map's values, ``"grid_height grid_width"``."""
        return self.token_map.values

    def numpy(self) -> np.ndarray:
        """A copy of the map's values as an array, in their own precision: ``"grid_height grid_width"``."""
        return np.array(self)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        """The rows from the top, as of :meth:`numpy`."""
        return iter(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values.numpy(), dtype, copy=copy is not False)

    def __dlpack__(self, **options: Any) -> Any:
        # By this protocol torch.as_tensor takes the values at once, not row by row.
        return self.values.clone().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()
