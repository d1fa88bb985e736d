"""Where a gallery is, as every verb takes it: a folder, or an address in a store (docs/stores.md)."""

from __future__ import annotations

from typing import Annotated

import typer

from doubtless.gallery.place import must_be_there

ADDRESSES = "or an address: postgres:…, qdrant:…, lancedb:…, milvus:…"

NewPlace = Annotated[str, typer.Argument(metavar="GALLERY", help=f"Folder to make, {ADDRESSES}.")]
GalleryPlace = Annotated[
    str,
    typer.Argument(metavar="GALLERY", help=f"Folder of the gallery, {ADDRESSES}.", callback=must_be_there),
]
