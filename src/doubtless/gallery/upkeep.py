"""What changes a gallery: items that come and go, and what is calibrated on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doubtless.errors import InputError
from doubtless.gallery.asking import Asking
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.queries import Pictures, Vectors, label_words
from doubtless.gallery.query_model import QueryModel, QueryModelLike
from doubtless.index.filters import Where
from doubtless.index.items import Item, checked_ids, refuse_unknown

if TYPE_CHECKING:
    from doubtless.calibration.fit import Targets
    from doubtless.data import Progress
    from doubtless.gallery.calibration.fit import NoveltyOf
    from doubtless.gallery.calibration.labelled import LabelledQueries
    from doubtless.gallery.content import ImageSources, Imported, Reading
    from doubtless.ingest.create import Filled


class Upkeep(Asking):
    """What is done to a gallery, as opposed to what it is asked."""

    def add(
        self,
        images: ImageSources | None = None,
        *,
        embedding: Vectors | Imported | None = None,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
        paths: Sequence[str | None] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        existing: str = "refuse",
        reading: Reading | None = None,
    ) -> Filled:
        """Adds images or embeddings, as `create` takes them; durable when it returns, images shard by shard.

        existing   what to do with ids that are there already: refuse, skip or update
        """
        from doubtless.gallery import content

        if (images is None) == (embedding is None):
            raise InputError("Images or an embedding are added; give one of the two.")
        if images is not None:
            reading = content.with_labels(reading, labels)
            return content.add_images(self.index, images, self.model, existing=existing, reading=reading)
        vectors = content.vectors_of(embedding, ids=ids, labels=labels, paths=paths, metadata=metadata)
        model = None if self._model_of.named is None else self.model
        return content.add_vectors(self.index, vectors, model, existing=existing)

    def remove(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> list[str]:
        """Takes items out, by their ids or by a condition, all or none; durable when it returns. Who they were."""
        if (ids is None) == (where is None):
            raise InputError("Items are removed by their ids or by a condition; give one of the two.")
        if where is not None and not where:
            raise InputError("An empty condition holds for every item; name what is to be removed.")
        names = self.index.ids(self.index.rows_where(where)) if where is not None else list(ids or [])
        if names:
            self.index.remove(ids if ids is not None else names)
        return names

    def make_room(self) -> bool:
        """Gives a full disk what was kept of it for removals; whether anything was. Removals do so themselves."""
        return self.index.make_room()

    def relabel(self, ids: Sequence[str], label: str | None) -> None:
        """Says of items what they show, `label` or, by None, nothing; all or none, durable when it returns.

        What was embedded stays, and so do paths and metadata. Probabilities look at the new label at once; what
        they promise was calibrated under the old one.

        >>> import torch
        >>> from doubtless import Embedding, Gallery
        >>> with Gallery.create("shop", embedding=Embedding.point(torch.eye(2)), labels=["leek", "leek"]) as shop:
        ...     shop.relabel(["1"], "garlic")
        ...     shop.item("1").label
        'garlic'
        """
        names = checked_ids(ids)
        known = self.index.rows_of(names)
        refuse_unknown(names, known)
        if names:
            stored = self.index.embedding([known[name] for name in names])
            self.index.update(stored, names, labels=[label] * len(names))

    def item(self, id: str) -> Item | None:
        """What is known of an item beside its embedding; None where there is no such item."""
        row = self.index.rows_of([id]).get(id)
        return None if row is None else self.index.items([row])[0]

    def calibrate(
        self,
        targets: Targets | None = None,
        *,
        target_error: float | None = None,
        queries: Pictures | Vectors | LabelledQueries | str | Path | None = None,
        labels: Sequence[str] | str | Path | None = None,
        items: Sequence[str] | str | Path | None = None,
        query_model: QueryModelLike | None = None,
        pairs: Sequence[tuple[str, str, bool]] | None = None,
        unlabelled: bool = False,
        novelty: NoveltyOf = "auto",
        most: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Calibrates match probability, abstention, covering sets, presence, pairs and doubt; returns the record.

        targets    what is to be promised; `target_error` alone stands for the usual ones with another error
        queries    with `labels`, or the place of labelled ones (`labelled_queries`); None: items search all others
        items      in place of labels: the id of the item that each query belongs to, or a CSV of id and item
        query_model   what embeds queries, or has embedded these vectors, where that is another encoder than the
                   items'; it is kept, and whatever is asked is embedded by it. A model, a function, or a name
        pairs      ids of two items and whether they are the same: match probability only
        unlabelled   without any label: items search each other, and a mixture says whether a hit is the same thing.
                   Nothing is promised before people have answered for pairs that `review` asks about
        novelty    what is looked at to tell what is new: "features" of the items' images, "directions", "leverage"
                   (these and the space that they fill), or "auto": features where model and images are found
        most       queries used, drawn at random with `seed` where there are more
        """
        from doubtless.gallery.calibration import fit as calibration
        from doubtless.gallery.calibration import labelled

        if unlabelled:
            if any(given is not None for given in (queries, labels, items, pairs, query_model)):
                raise InputError(
                    "Without labels a gallery is calibrated on its own items, and on nothing else."
                )
            calibrated = self._calibrated_unlabelled(targets, target_error, most, seed)
        elif pairs is not None:
            calibrated = calibration.calibrate_on_pairs(self.index, pairs)
        else:
            if query_model is not None:
                self._query_model = QueryModel.of(query_model)
            by = self._query_model
            words = labels if labels is None or isinstance(labels, str | Path) else label_words(labels)
            given = labelled.outside(self, queries, words, items, progress=progress)  # type: ignore[arg-type]
            # Of queries from outside only directions are compared, so no image is looked at again.
            looked_at: NoveltyOf = novelty if queries is None else "directions"
            made = calibration.calibrate(
                self.index,
                calibration.targets_of(targets, target_error),
                queries=given.embedding,
                labels=given.labels,
                belongs_to=given.items,
                other_encoder=by is not None,
                features_of=calibration.feature_reader(self, looked_at, progress=progress),
                leverage=novelty == "leverage",
                most=most or calibration.MOST,
                seed=seed,
            )
            if by is not None:
                made = replace(made, record={**(made.record or {}), **by.record()})
            calibrated = given.noted(self, made)
        calibrated.save(self.index)  # once: who is killed before has the old one, who is after it the new one
        self.reload()
        return dict(calibrated.record or {})

    def _calibrated_unlabelled(
        self, targets: Targets | None, target_error: float | None, most: int | None, seed: int
    ) -> Calibrated:
        from doubtless.gallery.calibration import fit as calibration
        from doubtless.gallery.calibration.unlabelled import fit_unlabelled, record_of

        self.must_ask_by_itself()
        wanted = calibration.targets_of(targets, target_error)
        known = fit_unlabelled(self.index, wanted, most=most or calibration.MOST, seed=seed)
        return Calibrated(unlabelled=known, record=record_of(self.index, known))

    def recalibrate(self, *, seed: int = 0) -> dict[str, Any]:
        """Brings the calibration to the gallery as it is now, at the cost of what changed; returns the record.

        What calibration queries found is kept: only new items are compared with them, and only queries that lost
        what they had found search again. Queries are replaced as items are, so that they stay a sample of them; the
        promise is asked for as it was. How odd a picture is, and pairs, stay as they were calibrated: where most of
        a gallery is another, `calibrate` it.
        """
        from doubtless.gallery.calibration import recalibration

        record = recalibration.recalibrate(self.index, seed=seed)
        self.reload()
        return record
