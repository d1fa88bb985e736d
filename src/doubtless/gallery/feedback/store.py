"""What people say of answers, kept beside a gallery: a SQLite file of its own, which several programs may write.

An entry is on the disk when it is acknowledged (write-ahead log, synchronised at every commit), and it is whole:
what was asked, as an embedding, what was shown, when, under which promise, and how the answer was chosen to be
judged. A file of lines would need a lock of its own between server and command line, and somebody who looks for the
last word on an answer; SQLite has both. It is apart from the index, which one process at a time may write.
"""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from doubtless.errors import DiskFullError, DoubtlessError, FileError, InputError
from doubtless.files import write_text
from doubtless.gallery.feedback import seals
from doubtless.index.database.connection import lacks_room, open_as, reading_mode

FILE = "feedback.sqlite"
NOTE = "feedback-last"
"""Beside it: the number of the last entry, by which a file that is gone, or has lost its log, is noticed."""
PATIENCE = 30.0
"""Seconds to wait for another writer."""
AHEAD = 50
"""Answers that are counted before they are given: a killed server has then counted too many, never too few."""
TABLES = """
CREATE TABLE IF NOT EXISTS answer (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, promise TEXT NOT NULL, time REAL NOT NULL,
    decision TEXT NOT NULL, label TEXT, probability REAL, promised REAL, labels TEXT NOT NULL,
    drawn INTEGER NOT NULL, thinned INTEGER NOT NULL, share REAL NOT NULL, asked INTEGER NOT NULL,
    place INTEGER, numbers BLOB, picture BLOB, UNIQUE (id, promise)
);
CREATE TABLE IF NOT EXISTS said (
    number INTEGER PRIMARY KEY, answer INTEGER NOT NULL REFERENCES answer, time REAL NOT NULL,
    verdict TEXT, label TEXT, who TEXT
);
CREATE INDEX IF NOT EXISTS said_of ON said (answer);
CREATE TABLE IF NOT EXISTS checked (
    id TEXT NOT NULL, label TEXT NOT NULL, time REAL NOT NULL, who TEXT, PRIMARY KEY (id, label)
);
CREATE TABLE IF NOT EXISTS given (promise TEXT PRIMARY KEY, answers INTEGER NOT NULL) WITHOUT ROWID;
"""
Judgement = Literal["right", "wrong"]


@dataclass(frozen=True)
class Shown:
    """An answer as it was given, in plain values.

    promise    which promise was in force; "" where there was none
    promised   the share of wrong answers that it allowed
    labels     the most probable ones with their probabilities
    drawn      a coin chose it to be judged, not a person
    thinned    of the drawn ones, those that are sure are asked for with the chance `share`, the others always
    asked      whether someone is asked for a judgement
    place      which of the counted answers it was, from 0
    """

    id: str
    promise: str
    time: float
    decision: str
    label: str | None
    probability: float | None
    promised: float | None
    labels: tuple[tuple[str, float], ...] = ()
    drawn: bool = False
    thinned: bool = False
    share: float = 1.0
    asked: bool = False
    place: int | None = None


@dataclass(frozen=True)
class Feedback:
    """One acknowledged entry: what someone said of an answer, and what was shown."""

    number: int
    time: float
    verdict: Judgement | None
    label: str | None
    who: str | None
    shown: Shown

    @property
    def truth(self) -> str | None:
        """What the query shows, as far as was said."""
        if self.label is not None:
            return self.label
        return self.shown.label if self.verdict == "right" else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, times in words."""
        own = {"number": self.number, "time": moment(self.time), "verdict": self.verdict, "label": self.label}
        return {**own, "truth": self.truth, "who": self.who, "shown": _plain(self.shown)}


class FeedbackStore:
    """Feedback of the gallery whose files lie in a folder.

    >>> store = FeedbackStore(Path("shop"))
    >>> shown = Shown("a1", "p", 0.0, "answer", "leek", 0.9, 0.05)
    >>> store.say(shown, "wrong", numbers=None).number
    1
    >>> store.say("a1", None, label="garlic").truth
    'garlic'
    >>> [entry.verdict for entry in store.entries()]
    ['wrong', None]
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock = threading.Lock()
        self._counting: dict[str, tuple[int, int]] = {}  # promise → next place, and where reserved ones end

    @property
    def exists(self) -> bool:
        """Whether anything was ever said or drawn."""
        return self.path.is_file()

    def keep(self, shown: Shown, *, numbers: bytes | None, picture: bytes | None = None) -> bool:
        """Keeps an answer to be judged; whether it was not there before."""
        with self._writing() as connection:
            return _insert(connection, shown, numbers, picture)

    def say(
        self,
        answer: Shown | str,
        verdict: Judgement | None,
        *,
        label: str | None = None,
        who: str | None = None,
        numbers: bytes | None = None,
        picture: bytes | None = None,
    ) -> Feedback:
        """Writes down what was said of an answer, or of one that was kept by its id; durable when it returns."""
        with self._writing() as connection:
            if isinstance(answer, Shown):
                _insert(connection, answer, numbers, picture)
            number, shown = _find(connection, answer)
            now = time.time()
            row = connection.execute(
                "INSERT INTO said (answer, time, verdict, label, who) VALUES (?, ?, ?, ?, ?)",
                (number, now, verdict, label, who),
            )
            assert row.lastrowid is not None
            return Feedback(row.lastrowid, now, verdict, label, who, shown)

    def find(self, id: str) -> Shown | None:
        """An answer that was kept, the last one of this id."""
        with self._reading() as connection:
            try:
                return _find(connection, id)[1]
            except InputError:
                return None

    def picture(self, id: str) -> bytes | None:
        """The picture that was kept with an answer."""
        with self._reading() as connection:
            query = "SELECT picture FROM answer WHERE id = ? ORDER BY number DESC LIMIT 1"
            row = connection.execute(query, (id,)).fetchone()
            return None if row is None else row[0]

    def entries(self) -> list[Feedback]:
        """Everything that was said, in its order."""
        own = "said.number, said.time, said.verdict, said.label, said.who"
        query = f"SELECT {own}, {COLUMNS} FROM said JOIN answer ON answer.number = said.answer ORDER BY 1"
        with self._reading(seals.SAID, seals.ANSWER) as connection:
            rows = connection.execute(query).fetchall()
            return [Feedback(*row[:5], _shown(row[5:])) for row in rows]  # type: ignore[call-arg]

    def answers(self, promise: str | None = None) -> list[tuple[Shown, Feedback | None]]:
        """Answers that were kept or judged, in the order in which they were given, with the last word on each."""
        with self._reading(seals.ANSWER) as connection:
            query = f"SELECT {COLUMNS} FROM answer" + ("" if promise is None else " WHERE promise = ?")
            rows = connection.execute(
                f"{query} ORDER BY time, number", () if promise is None else (promise,)
            ).fetchall()
            kept = [_shown(row) for row in rows]
        last = {(one.shown.id, one.shown.promise): one for one in self.entries()}
        return [(shown, last.get((shown.id, shown.promise))) for shown in kept]

    @property
    def last(self) -> int:
        """The number of the last entry; 0 before the first."""
        with self._reading() as connection:
            return _last(connection)

    def numbers(self, answers: Sequence[Shown]) -> list[bytes | None]:
        """The embedding of each, as it was kept."""
        query = "SELECT numbers FROM answer WHERE id = ? AND promise = ?"
        with self._reading() as connection:
            return [connection.execute(query, (one.id, one.promise)).fetchone()[0] for one in answers]

    def count(self, promise: str) -> int:
        """The place of one more answer under a promise, from 0; no place is given twice, by whichever program."""
        with self._lock:
            following, reserved = self._counting.get(promise, (0, 0))
            if following == reserved:
                following = self._reserve(promise)
                reserved = following + AHEAD
            self._counting[promise] = following + 1, reserved
            return following

    def _reserve(self, promise: str) -> int:
        """The first of `AHEAD` places that nobody else gets."""
        with self._writing() as connection:
            row = connection.execute("SELECT answers FROM given WHERE promise = ?", (promise,)).fetchone()
            first = 0 if row is None else int(row[0])
            connection.execute(
                "REPLACE INTO given (promise, answers) VALUES (?, ?)", (promise, first + AHEAD)
            )
        return first

    def given(self, promise: str) -> int:
        """How many answers were counted under a promise, at least as many as were given."""
        if promise in self._counting:
            return self._counting[promise][0]
        with self._reading(seals.GIVEN) as connection:
            row = connection.execute("SELECT answers FROM given WHERE promise = ?", (promise,)).fetchone()
            return 0 if row is None else int(row[0])

    def check(self, id: str, label: str, who: str | None = None) -> None:
        """Writes down that what is called `id` does have this label; durable when it returns."""
        with self._writing() as connection:
            values = (id, label, time.time(), who)
            connection.execute("REPLACE INTO checked (id, label, time, who) VALUES (?, ?, ?, ?)", values)

    def checked(self) -> set[tuple[str, str]]:
        """What was looked at and found to be right: ids and labels."""
        with self._reading(seals.CHECKED) as connection:
            return set(connection.execute("SELECT id, label FROM checked NOT INDEXED").fetchall())

    def damage(self) -> list[str]:
        """What is wrong with the file, all of it looked at: sentences, none where it is whole or never was."""
        noted = self._noted()  # before the file is read: so a writer that is at it disturbs nobody
        try:
            with self._reading(*seals.SEALS) as connection:
                told = connection.execute("PRAGMA integrity_check(10)").fetchall()
                last = _last(connection)
            self.entries(), self.answers()
        except FileError as error:
            return [str(error)]
        found = [f"What was said of answers, {self.path}: {line}." for (line,) in told if line != "ok"]
        if noted > last:
            found.append(
                f"What was said of answers, {self.path}, is gone or older than it was: entry {noted:,} was "
                f"acknowledged, and it has come to {last:,}. To go on with what there is, delete "
                f"{self.path.with_name(NOTE)}."
            )
        return found

    def export(self, path: str | Path) -> int:
        """Writes everything that was said into a .csv or .jsonl file; how many entries."""
        told = [entry.to_json() for entry in self.entries()]
        kind = Path(path).suffix.lower()
        if kind == ".jsonl":
            write_text(path, "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in told))
        elif kind == ".csv":
            write_text(path, _table(told))
        else:
            raise InputError(f"Feedback is exported to a .csv or .jsonl file, got {path}.")
        return len(told)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, synchronised with the disk when the block has ended."""
        with self._translated():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    for statement in TABLES.split(";"):
                        connection.execute(statement)
                    seals.know_seals(connection)
                    seals.prepare(connection)
                    yield connection
                    seals.seal_new(connection)
                    last = _last(connection)
                    connection.execute("COMMIT")
                    self._note(last)
                except BaseException:
                    with contextlib.suppress(
                        sqlite3.Error
                    ):  # SQLite has rolled back by itself after some errors
                        connection.execute("ROLLBACK")
                    raise

    def _note(self, last: int) -> None:
        """After the change is on the disk; where it cannot be written an older one stays, which does no harm."""
        with contextlib.suppress(OSError):
            self.path.with_name(NOTE).write_text(f"{last}\n")

    def _noted(self) -> int:
        """What was noted; 0 where that cannot be read."""
        try:
            return int(self.path.with_name(NOTE).read_text())
        except (OSError, ValueError):
            return 0

    @contextlib.contextmanager
    def _reading(self, *sealed: seals.Seal) -> Iterator[sqlite3.Connection]:
        """What is there at one moment, nothing where there is no file; seals that must be whole."""
        with self._translated(), contextlib.closing(self._readable()) as connection:
            connection.execute("BEGIN")
            seals.know_seals(connection)
            if seals.broken(connection, sealed):
                raise ValueError("it does not hold what was written into it")
            yield connection

    def _readable(self) -> sqlite3.Connection:
        """The file or, where its first writer has not committed yet, empty tables."""
        if self.exists:
            connection = open_as(self.path, reading_mode(self.path))
            try:
                if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'given'").fetchone():
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.executescript(TABLES)
        return connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DoubtlessError:
            raise
        except (sqlite3.Error, OSError) as error:
            kind = DiskFullError if lacks_room(error) else FileError
            raise kind(f"What was said of answers, {self.path}, cannot be used: {error}.") from error
        except (TypeError, ValueError, KeyError) as error:  # values of other kinds than were written
            raise FileError(f"What was said of answers, {self.path}, is damaged: {error}.") from error


COLUMNS = ", ".join(f"answer.{one.name}" for one in fields(Shown))


def _last(connection: sqlite3.Connection) -> int:
    """The number of the last entry; 0 where there is none."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM said").fetchone()[0])


def moment(seconds: float) -> str:
    """
    >>> moment(0.0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _shown(row: Sequence[Any]) -> Shown:
    values = dict(zip((one.name for one in fields(Shown)), row, strict=True))
    values["labels"] = tuple((label, chance) for label, chance in json.loads(values["labels"]))
    return Shown(**values | {name: bool(values[name]) for name in ("drawn", "thinned", "asked")})


def _plain(shown: Shown) -> dict[str, Any]:
    return {**asdict(shown), "time": moment(shown.time), "labels": [list(one) for one in shown.labels]}


def _insert(
    connection: sqlite3.Connection, shown: Shown, numbers: bytes | None, picture: bytes | None
) -> bool:
    """Keeps an answer unless it is there; one that is there counts as drawn from here on where this one does."""
    values = {**asdict(shown), "labels": json.dumps(shown.labels), "numbers": numbers, "picture": picture}
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    row = connection.execute(
        f"INSERT OR IGNORE INTO answer ({names}) VALUES ({marks})", tuple(values.values())
    )
    if row.rowcount == 0 and shown.drawn and not shown.thinned:
        connection.execute(
            "UPDATE answer SET drawn = 1, asked = 1, seal = NULL WHERE id = ? AND promise = ? AND drawn = 0",
            (shown.id, shown.promise),
        )
    return row.rowcount > 0


def _find(connection: sqlite3.Connection, answer: Shown | str) -> tuple[int, Shown]:
    if isinstance(answer, Shown):
        condition, values = "id = ? AND promise = ?", (answer.id, answer.promise)
    else:
        condition, values = "id = ?", (answer,)  # type: ignore[assignment]
    query = f"SELECT number, {COLUMNS} FROM answer WHERE {condition} ORDER BY number DESC LIMIT 1"
    row = connection.execute(query, values).fetchone()
    if row is None:
        raise InputError(
            f"There is no answer {answer!r} that was kept; give the answer itself, or its picture."
        )
    return int(row[0]), _shown(row[1:])


def _table(told: Sequence[Mapping[str, Any]]) -> str:
    """CSV: what was said, then what was shown."""
    own = ("number", "time", "verdict", "label", "truth", "who")
    shown = ("id", "time", "decision", "label", "probability", "promised", "drawn", "share")
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow([*own, *(f"shown_{name}" for name in shown)])
    for one in told:
        writer.writerow([*(one[name] for name in own), *(one["shown"][name] for name in shown)])
    return file.getvalue()
