"""`Growing`: an array that can be appended to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Growing:
    """An array that can be appended to; appending n rows one by one moves each of them about once."""

    def __init__(self, start: NDArray[Any]) -> None:
        self._buffer, self._length = start, len(start)

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> NDArray[Any]:
        """What is in it."""
        return self._buffer[: self._length]

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows at the end."""
        needed = self._length + len(rows)
        if needed > len(self._buffer):
            larger = np.empty((max(needed, 2 * self._length), *self._buffer.shape[1:]), self._buffer.dtype)
            larger[: self._length] = self.array
            self._buffer = larger
        self._buffer[self._length : needed] = rows
        self._length = needed
