"""`VectorCache`: the vectors of an index where a search finds them, in memory or mapped from the cache's files.

It is never the truth: `refresh` brings it to what the database says, from the files as far as they are good
(then rows that came later are read from the database), or from nothing.

A position is where an item lies in the arrays; positions are in the order of rows. An item that was removed
keeps its position until the next compaction, and its vectors become NaN: an inner product that is not a number
is greater than nothing, so FAISS never proposes it, and a search of all vectors stays one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from doubtless.errors import FileError
from doubtless.index.cache_files import CacheFiles, DamageError, warn_of_damage, warn_of_failed_write
from doubtless.index.database.seals import damaged
from doubtless.index.database.store import State, Store
from doubtless.index.forms import ITEM, Floats, Integers, Searchable, matrix_widths, searchable, unpacked
from doubtless.index.growing import Growing
from doubtless.index.moments import CHUNK, Moments
from doubtless.index.proposals import Approximate, Source, next_step
from doubtless.index.settings import Settings

BLOCK = 16_384  # rows taken from the database at a time
BEHIND = 0.9  # share of the rows in the files that sums in the files must reach not to be written again
TAIL = 65_536  # rows in memory after which a writer puts them into the files


class Matrix:
    """Vectors (n, width) in two pieces: those of the cache's files, and those that came later."""

    def __init__(self, mapped: Floats) -> None:
        self.mapped = mapped
        self.tail = Growing(np.empty((0, mapped.shape[1]), np.float32))

    def __len__(self) -> int:
        return len(self.mapped) + len(self.tail)

    def pieces(self, start: int = 0) -> Iterator[tuple[int, Floats]]:
        """(position of its first row, rows) of each piece, from a position on."""
        first = 0
        for piece in (self.mapped, self.tail.array):
            rest = piece[max(0, start - first) :]
            if len(rest):
                yield first + len(piece) - len(rest), rest
            first += len(piece)

    def take(self, positions: Integers) -> Floats:
        """The vectors at these positions, (…, width)."""
        if not len(self.tail):
            return np.asarray(self.mapped[positions])
        if not len(self.mapped):
            return self.tail.array[positions]
        in_tail = positions >= len(self.mapped)
        vectors = self.mapped[np.where(in_tail, 0, positions)]
        vectors[in_tail] = self.tail.array[positions[in_tail] - len(self.mapped)]
        return np.asarray(vectors)

    def erase(self, positions: Integers) -> None:
        """Makes the vectors at these positions NaN."""
        in_tail = positions >= len(self.mapped)
        self.mapped[positions[~in_tail]] = np.nan
        self.tail.array[positions[in_tail] - len(self.mapped)] = np.nan


class VectorCache:
    """Vectors, labels and doubts of all items; changed only while nobody searches."""

    def __init__(self, index: Path, settings: Settings, *, writable: bool) -> None:
        self._index, self.settings, self._writable = index, settings, writable
        self.generation = self.version = -1
        self._files: CacheFiles | None = None
        self.approximate: Approximate | None = None
        self._moments: Moments | None = None  # of the first `_summed` positions; None until somebody asks
        self._summed = 0
        self._fill(np.zeros(0, ITEM), {name: np.zeros((0, w), np.float32) for name, w in self._widths})

    @property
    def _widths(self) -> list[tuple[str, int]]:
        return list(matrix_widths(self.settings).items())

    # -- what there is -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> NDArray[np.void]:
        """(positions,) of ITEM, the removed ones included."""
        return self._items.array

    @property
    def alive(self) -> NDArray[np.bool_]:
        """(positions,): whether the item there has not been removed."""
        return self._alive.array

    @property
    def last_row(self) -> int:
        """The highest row that is here, removed or not; −1 without any."""
        return int(self.items["row"][-1]) if len(self) else -1

    def matrix(self, score: str) -> Matrix:
        """The vectors searched by a score; points have one kind for both."""
        return self._matrices.get(score, self._matrices["direction"])

    def positions_of(self, rows: Integers) -> Integers:
        """Positions of those of these rows that are here."""
        places = np.searchsorted(self.items["row"], rows)
        inside = places < len(self)
        places, rows = places[inside], rows[inside]
        return places[(self.items["row"][places] == rows) & self.alive[places]]

    def directions(self, rows: Integers) -> Floats:
        """Unit vectors (m, D) at rows (m,) in any order; 0 where there is no such item."""
        if not len(self):
            return np.zeros((len(rows), self.settings.dim), np.float32)
        places = np.searchsorted(self.items["row"], rows).clip(max=len(self) - 1)
        there = (self.items["row"][places] == rows) & self.alive[places]
        found = self.matrix("direction").take(places)[:, : self.settings.dim]
        return np.where(there[:, None], found, np.float32(0))

    # -- following the database ----------------------------------------------------------------------

    def is_current(self, state: State) -> bool:
        """Whether nothing has changed since the last refresh."""
        return (self.generation, self.version) == (state.generation, state.version)

    def refresh(self, store: Store, state: State) -> None:
        """Brings everything to what the database says now; inside one reading transaction."""
        lag = state.next_row - 1 - self.last_row
        if self.generation != state.generation or (lag > TAIL and not self._writable):
            self._start(state)
        seen = self.version  # −1 after a start: all that was removed in this generation is taken out
        while True:
            block = store.block(self.last_row, BLOCK)
            if not len(block.rows):
                break
            distributions = unpacked(block.numbers, self.settings)
            self.append(searchable(distributions, self.settings, rows=block.rows, labels=block.labels))
            self.save_if_long(state.version)
        self.erase(store.removed(seen))
        there = int(self.alive.sum())
        if there != state.items:
            self.generation = -1
            raise damaged(self._index, f"{there:,} items can be read of {state.items:,}")
        self.generation, self.version = state.generation, state.version

    def append(self, new: Searchable) -> None:
        """Adds items behind those that are here."""
        self._items.append(new.items)
        self.has_labels |= bool((new.items["label"] >= 0).any())
        self._alive.append(np.ones(len(new), bool))
        for name, rows in new.matrices.items():
            self._matrices[name].tail.append(rows)

    def erase(self, rows: Integers) -> None:
        """Takes removed items out of every search."""
        positions = self.positions_of(rows)
        if self._moments is not None and len(summed := positions[positions < self._summed]):
            self._moments = self._moments.less(torch.from_numpy(self.matrix("direction").take(summed)))
        self.alive[positions] = False
        for matrix in self._matrices.values():
            matrix.erase(positions)

    def moments(self) -> Moments:
        """Σ x xᵀ over the directions that are here; only what came since it was asked for last is looked at."""
        if self._moments is None:
            self._moments, self._summed = self._saved_moments()
        if self._summed < len(self):
            self._moments = self._moments.more(self._directions(self._summed))
            self._summed = len(self)
        return self._moments

    def _directions(self, start: int) -> Iterator[torch.Tensor]:
        """Directions of items that are there, from a position on, piece by piece."""
        matrix = self.matrix("direction")
        for first in range(start, len(self), CHUNK):
            alive = first + np.flatnonzero(self.alive[first : first + CHUNK])
            yield torch.from_numpy(matrix.take(alive))

    def _saved_moments(self) -> tuple[Moments, int]:
        """Those of the files without the items that were removed since, and how far they reach."""
        nothing = Moments.none(self.settings.dim), 0
        if self._files is None:
            return nothing
        try:
            saved = self._files.read_moments(self.settings)
            if saved is None:
                return nothing
            reach = self._files.summed
            gone = self._removed_directions(reach)
        except DamageError as error:
            warn_of_damage(self._index, error)
            return nothing
        return saved.less(gone), reach

    def _removed_directions(self, count: int) -> torch.Tensor:
        """What the files hold of removed items among the first `count`; in memory they are NaN.

        Those that were removed before they came into the files are NaN there as well, and in no sum.
        """
        assert self._files is not None
        gone = np.flatnonzero(~self.alive[:count])
        if not len(gone):
            return torch.empty(0, self.settings.dim)
        rows = np.array(self._files.read()[1]["direction"][gone])
        return torch.from_numpy(rows[np.isfinite(rows).all(1)])

    # -- files ---------------------------------------------------------------------------------------

    def save_if_long(self, version: int) -> None:
        """Puts what is only in memory into the files where that is much."""
        if self._writable and self._unsaved >= TAIL:
            self.save(version)

    def save(self, version: int, *, build: bool = False) -> None:
        """Puts what is only in memory into the files. That it may fail costs time later, never items.

        build: the approximate index is brought to them as well, which may take minutes; else only where whoever
        made the gallery has chosen its kind. `Builder` does so in the background.
        """
        if self.generation < 0:
            return  # nothing here is worth keeping
        try:
            if self._files is None:
                self._files = CacheFiles.new(
                    self._index, self.settings, generation=self.generation, version=version
                )
            if self._unsaved or self._files.stamp.version != version:
                tails = {name: matrix.tail.array for name, matrix in self._matrices.items()}
                unsaved = self.items[len(self) - self._unsaved :]
                self._files.append(Searchable(unsaved, tails), version=version)
                self._map_again()
            self._keep_approximate(build=build or self.settings.kind != "auto")
            self._keep_moments()
        except (OSError, FileError) as error:
            if self._files is not None and not self._files.is_read:
                self._files = None  # nothing of it was kept
            warn_of_failed_write(self._index, error)
        except DamageError as error:
            self._throw_away(error)
            self.generation = -1  # the next refresh starts again

    def compacted(self, state: State) -> None:
        """Leaves removed items out, in memory and in files of the new generation."""
        kept = np.flatnonzero(self.alive)
        items = self.items[kept]
        matrices = {name: matrix.take(kept) for name, matrix in self._matrices.items()}
        self._fill(np.zeros(0, ITEM), {name: array[:0] for name, array in matrices.items()})
        self.append(Searchable(items, matrices))
        self._files, self.generation, self.version = None, state.generation, state.version
        self.save(state.version, build=True)

    @property
    def _unsaved(self) -> int:
        return len(self._matrices["direction"].tail)

    def _start(self, state: State) -> None:
        """Begins from the files where they belong to this database, else from nothing."""
        self.generation, self.version = state.generation, -1
        self._files = CacheFiles.current(self._index, self.settings)
        while self._files is not None:
            if not self._belongs(self._files, state):
                self._discard()
                break
            try:
                self._fill(*self._files.read())
                return self._load_approximate()
            except DamageError as error:
                later = CacheFiles.current(self._index, self.settings)
                if later is None or later.stamp == self._files.stamp:
                    self._throw_away(error)
                    break
                self._files = later  # the writer has put other files in place meanwhile
        return self._fill(np.zeros(0, ITEM), {name: np.zeros((0, w), np.float32) for name, w in self._widths})

    def _belongs(self, files: CacheFiles, state: State) -> bool:
        stamp = files.stamp
        return (stamp.identity, stamp.generation) == (self.settings.identity, state.generation) and (
            stamp.version <= state.version
        )

    def _throw_away(self, damage: DamageError) -> None:
        warn_of_damage(self._index, damage)
        self._discard()

    def _discard(self) -> None:
        if self._writable and self._files is not None:
            self._files.discard()
        self._files = None

    def _load_approximate(self) -> None:
        """Without it a search is slower, and exact."""
        assert self._files is not None
        try:
            self.approximate = self._files.read_approximate(self.settings)
        except DamageError as error:
            warn_of_damage(self._index, error)

    def next_step(self) -> str:
        """What there is to do about the approximate index of what is in the files."""
        have = None if self.approximate is None else self.approximate.recipe
        if self._files is None or not self.alive[: self._files.stamp.count].any():
            return "keep"
        return next_step(self.settings, have, count=self._files.stamp.count)

    def source(self) -> Source:
        """What an approximate index of the files is made of."""
        score = self.settings.ranking_score
        return Source(self.matrix(score).mapped, self.items["spread"], settings=self.settings, score=score)

    def extendable(self) -> Approximate | None:
        """The approximate index that there is, where it is to be extended and not built again."""
        if self._files is None or self.next_step() != "extend":
            return None
        return self._files.read_approximate(self.settings, mapped=False)

    def take(self, approximate: Approximate) -> None:
        """Puts one that was made of the files, as they were a while ago, into them."""
        assert self._files is not None
        self._files.write_approximate(approximate)
        self._load_approximate()

    def _keep_approximate(self, *, build: bool) -> None:
        """Builds or extends the approximate index where there is enough in the files that it does not cover."""
        assert self._files is not None
        step = self.next_step()
        if step == "drop":
            self._files.write_approximate(None)
            self.approximate = None
        if step not in ("build", "extend") or not build:
            return
        source = self.source()
        new = (self.extendable() or Approximate.empty(source)).extended(source)
        assert new is not None  # nobody stops it
        self.take(new)

    def _keep_moments(self) -> None:
        """Saves sums that somebody has asked for, where those in the files are much behind.

        Those in the files are of all rows of numbers that are in the files, whatever was removed since.
        """
        assert self._files is not None
        count = self._files.stamp.count
        if self._moments is None or not count or self._files.summed > BEHIND * count:
            return
        self._files.write_moments(self.moments().more([self._removed_directions(count)]))

    def _fill(self, items: NDArray[np.void], matrices: dict[str, Floats]) -> None:
        self.approximate = None
        self._moments, self._summed = None, 0
        self._items = Growing(items)
        self.has_labels = bool((items["label"] >= 0).any())
        self._alive = Growing(np.ones(len(items), bool))
        self._matrices = {name: Matrix(array) for name, array in matrices.items()}

    def _map_again(self) -> None:
        """Lets go of what is now in the files."""
        assert self._files is not None
        alive, approximate, summed = self.alive, self.approximate, (self._moments, self._summed)
        self._fill(*self._files.read())
        self._alive, self.approximate = Growing(alive), approximate
        self._moments, self._summed = summed
        gone = np.flatnonzero(~alive)
        for matrix in self._matrices.values():
            matrix.erase(gone)
