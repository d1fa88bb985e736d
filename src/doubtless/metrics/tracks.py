"""What an uncertainty sees: the picture alone, or the gallery and its labels too. They are never ranked together.

What a network says of a picture can be known before anything is searched, for every picture anywhere. What the
neighbours say needs a gallery, and their disagreement its labels.
"""

from __future__ import annotations

from typing import Literal

Track = Literal["picture", "gallery"]

PICTURE: Track = "picture"
GALLERY: Track = "gallery"

TRACKS: dict[str, Track] = {
    "uncertainty": PICTURE,  # what the embedding learned
    "norm": PICTURE,
    "image": PICTURE,
    "model": PICTURE,
    "match": GALLERY,  # query and first hit
    "distance": GALLERY,
    "ratio": GALLERY,
    "spread": GALLERY,
    "disagreement": GALLERY,
    "contested": GALLERY,
    "novelty": GALLERY,
    "leverage": GALLERY,
    "doubt": GALLERY,
}
"""Every uncertainty of an evaluation by name."""

SENTENCES: dict[Track, str] = {
    PICTURE: "sees the picture alone",
    GALLERY: "sees the gallery and its labels",
}
"""A track in a table's header."""


def track_of(name: str) -> Track:
    """The track of an uncertainty by its name; one that came from outside and is unknown may have seen everything.

    >>> track_of("norm"), track_of("doubt"), track_of("somebody's")
    ('picture', 'gallery', 'gallery')
    """
    return TRACKS.get(name, GALLERY)
