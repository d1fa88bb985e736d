"""What is worth a person's minute, in order of what it would tell, and what becomes of the answer.

Everything is measured by one number, `tells`: the chance that what is stored or shown now is wrong.

answer      an answer that was drawn (`Gallery.keep`) and that nobody has judged: uncertain ones always, sure ones
            every other time, so that few labels show whether the promise holds. What is said becomes feedback
pair        an item and its first hit, in a gallery calibrated without labels: those whose answer is expected to
            tighten its promise most (`doubtless.calibration.pairs.asked`). What is said becomes feedback
label       an item whose label is far less probable than another, judged by all other items, so that it is an
            error with a chance of 3 in 10 or more where 1 in 20 is one beforehand. What is said becomes its label
duplicate   two items so near that they are one picture: under two labels one of these is wrong; under one label the
            picture counts twice, and finds itself when the gallery is calibrated
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from doubtless.calibration.kept_searches import some_of
from doubtless.errors import InputError, nearest
from doubtless.gallery.feedback import pairs
from doubtless.search.hits import without_itself

if TYPE_CHECKING:
    from doubtless.gallery.asking import Asking
    from doubtless.gallery.judged import Judged

Kind = Literal["answer", "pair", "label", "duplicate"]
IN_ORDER = ("answer", "pair")
"""Asked in the order in which they were drawn."""
MOST_LOOKED_AT = 20_000
"""Items that are looked at, drawn at random where there are more."""
CHUNK = 500
TINY = 1e-12
ERRORS = 0.05
"""Share of labels held to be wrong before an item is looked at."""
UNLIKE = 0.003
"""Part of *none of these* that speaks for an item's own label: what is like nothing is not like another label."""
LEAST = 0.3
"""Chance of being wrong from which a label is asked for."""
SAME_PICTURE = 0.1
"""Of the median distance between nearest items: what is nearer is one picture."""
TWICE = 0.5
"""What a picture that is there twice under one label tells: no label is wrong, but something is."""


@dataclass(frozen=True)
class Question:
    """One thing to look at.

    id         what `Gallery.accept` calls it: answer:ID, pair:ID or item:ID
    tells      chance that what is stored or shown now is wrong
    question   a sentence
    label      what is stored or shown now
    options    what it may be instead, the most probable first, with probabilities
    other      the other item, of duplicates and pairs
    """

    id: str
    kind: Kind
    tells: float
    question: str
    label: str | None
    options: tuple[tuple[str, float], ...] = ()
    other: str | None = None


@dataclass(frozen=True)
class Review:
    """Questions, the most telling first, and how many there are of each kind."""

    questions: tuple[Question, ...]
    found: dict[str, int]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.questions)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.questions)

    def __getitem__(self, place: int) -> Question:
        return self.questions[place]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "found": dict(self.found),
            "notes": list(self.notes),
            "questions": [asdict(one) for one in self.questions],
        }


@dataclass(frozen=True)
class Looked:
    """What a look at a gallery's items found, whatever anybody has said to it since."""

    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = ()


def look_over(gallery: Judged, kinds: Iterable[str] = ("label", "duplicate")) -> Looked:
    """Judges every item by all others, which takes a while: labels that are probably wrong, and near-duplicates."""
    wanted, notes, questions = set(kinds), [], []
    if len(gallery) < 2:
        return Looked()
    looked_at = some_of(gallery.index.rows, MOST_LOOKED_AT, 0)
    if "label" in wanted and gallery.judge.calibrated.distribution is None:
        notes.append("Labels are judged once the gallery is calibrated on them.")
    elif "label" in wanted:
        questions += list(doubtful_labels(gallery, looked_at))
    if "duplicate" in wanted:
        questions += list(duplicates(gallery, looked_at))
    if len(looked_at) < len(gallery):
        notes.append(f"{len(looked_at):,} of {len(gallery):,} items were looked at.")
    return Looked(tuple(questions), tuple(notes))


def review(
    gallery: Judged, most: int = 20, *, kinds: Iterable[str] | None = None, looked: Looked | None = None
) -> Review:
    """The first questions about a gallery's answers and items; `looked`: what `look_over` has found already."""
    wanted = get_args(Kind) if kinds is None else tuple(kinds)
    for kind in wanted:
        if kind not in get_args(Kind):
            raise InputError(f"There is nothing of kind {kind!r} to review{nearest(kind, get_args(Kind))}")
    if most < 1:
        raise InputError(f"At least one question must be asked for, got {most}.")
    if looked is None:
        of_items = {"label", "duplicate"} & set(wanted)
        looked = look_over(gallery, of_items) if of_items else Looked()
    questions = list(waiting_answers(gallery)) if "answer" in wanted else []
    questions += list(waiting_pairs(gallery, most)) if "pair" in wanted else []
    questions += [one for one in looked.questions if one.kind in wanted]
    checked = gallery.judgements.checked()
    questions = [one for one in questions if (one.id, one.label) not in checked]
    found = {kind: sum(one.kind == kind for one in questions) for kind in wanted}
    return Review(tuple(_ordered(questions)[:most]), found, looked.notes)


def _ordered(questions: list[Question]) -> list[Question]:
    """The most telling first; answers and pairs take their places among the rest in the order they were drawn in.

    A drawn answer that is left out counts against the promise, so later ones tell nothing before it is judged.
    """
    drawn = {kind: iter([one for one in questions if one.kind == kind]) for kind in IN_ORDER}
    by_worth = sorted(questions, key=lambda one: -one.tells)
    return [next(drawn[one.kind]) if one.kind in drawn else one for one in by_worth]


def waiting_answers(gallery: Judged) -> Iterator[Question]:
    """Answers that were drawn and asked for, and that nobody has judged."""
    for shown, said in gallery.judgements.answers():
        if said is not None or not shown.asked:
            continue
        chance = 1 - (shown.probability or 0.0)
        if shown.decision == "not-in-gallery":
            chance = sum(one for _, one in shown.labels)
        told = {"answer": f"Was {shown.label} right?", "abstain": "What does it show?"}
        asked = told.get(shown.decision, "Is it really nothing of the gallery?")
        yield Question(f"answer:{shown.id}", "answer", 1 - chance, asked, shown.label, options=shown.labels)


def waiting_pairs(gallery: Judged, most: int) -> Iterator[Question]:
    """Items and their first hits, up to `most`, of a gallery that was calibrated without labels."""
    for shown in pairs.waiting(gallery, most):
        (item, same), (hit, _) = shown.labels
        asked = f"Are {item} and {hit} the same thing (probability {same:.2f})?"
        options = (("same", same), ("different", 1 - same))
        yield Question(f"{pairs.PREFIX}{item}", "pair", 1 - same, asked, None, options, hit)


def doubtful_labels(gallery: Asking, rows: Tensor) -> Iterator[Question]:
    """Items whose label is far less probable than another one, each judged by all others."""
    index = gallery.index
    code_of = dict(zip(index.rows.tolist(), index.labels.tolist(), strict=True))
    sizes = index.labels[index.labels >= 0].bincount(minlength=1)
    codes = torch.tensor([code_of[row] for row in rows.tolist()])
    several = (codes >= 0) & (sizes[codes.clamp_min(0)] > 1)  # the only one of its label finds no other
    names, rows, codes = index.label_names, rows[several], codes[several]
    for some, given in zip(rows.split(CHUNK), codes.split(CHUNK), strict=True):
        told = gallery.ask_items(some, k=1).distribution
        assert told is not None
        own = told.of(given.unsqueeze(1)).squeeze(1)
        others = told.probability.masked_fill((told.label == given.unsqueeze(1)) | (told.label < 0), 0.0)
        chance, place = others.max(1)
        right = (1 - ERRORS) * (own + UNLIKE * told.none)
        wrong = ERRORS * chance / (ERRORS * chance + right).clamp_min(TINY)
        doubtful = (wrong >= LEAST).nonzero().squeeze(1)
        items = index.items(some[doubtful])
        for number, item in zip(doubtful.tolist(), items, strict=True):
            best = int(told.label[number, place[number]])
            likely, before = float(chance[number]), float(own[number])
            yield Question(
                f"item:{item.id}",
                "label",
                float(wrong[number]),
                f"Is this {item.label} (probability {before:.2f}), or {names[best]} ({likely:.2f})?",
                item.label,
                options=((names[best], likely), (str(item.label), before)),
            )


def duplicates(gallery: Asking, rows: Tensor) -> Iterator[Question]:
    """Pairs of items that are one picture; those under two labels tell more."""
    index, pairs = gallery.index, []
    for some in rows.split(CHUNK):
        hits = without_itself(index.search(index.embedding(some), 2, score="direction"), some)
        found = hits.found[:, 0]
        away = (1 - hits.score[:, 0].double()).clamp_min(0)
        pairs.append(torch.stack([some.double(), hits.row[:, 0].double(), away])[:, found])
    first, second, away = torch.cat(pairs, dim=1)
    near = away <= SAME_PICTURE * away.median()
    seen: set[tuple[int, int]] = set()
    for one, other in zip(first[near].long().tolist(), second[near].long().tolist(), strict=True):
        pair = min(one, other), max(one, other)
        if pair in seen:
            continue
        seen.add(pair)
        here, there = index.items(list(pair))
        across = here.label != there.label
        labels = f"{here.label} and {there.label}" if across else f"both {here.label}"
        question = f"One picture under two names: {here.id} and {there.id} ({labels})."
        options = ((str(there.label), 0.5), (str(here.label), 0.5)) if across else ()
        yield Question(
            f"item:{here.id}", "duplicate", 1.0 if across else TWICE, question, here.label, options, there.id
        )


def accept(gallery: Judged, id: str, label: str, *, who: str | None = None) -> str:
    """What was said to a question: feedback on an answer or a pair, or an item's label; a sentence about it.

    Of an answer also "right" and "wrong" are taken. An item that has this label already is not asked for again.
    """
    kind, colon, name = id.partition(":")
    if not colon or kind not in {"answer", "pair", "item"}:
        raise InputError(
            f"What is answered is called answer:ID or item:ID, or pair:ID of two items, got {id!r}."
        )
    if kind == "pair":
        if label not in pairs.WORDS:
            raise InputError(f"Two items are one of {', '.join(pairs.WORDS)}, got {label!r}.")
        shown = pairs.say(gallery, name, pairs.WORDS[label], who=who).shown
        return f"{name} and {shown.label}: {label}."
    if kind == "answer":
        if label in {"right", "wrong"}:
            entry = gallery.feedback(name, label, who=who)  # type: ignore[arg-type]
        else:
            entry = gallery.feedback(name, label=label, who=who)
        return (
            f"Answer {name} was {entry.verdict or 'no answer'}; it shows {entry.truth or 'something else'}."
        )
    item = gallery.item(name)
    if item is None:
        raise InputError(f"The gallery has no item {name!r}.")
    if item.label != label:
        gallery.relabel([name], label)
        return f"Item {name} is {label} now, and was {item.label}."
    gallery.judgements.check(id, label, who)
    return f"Item {name} is {label}, as it was said before."
