"""A LangChain retriever over a gallery, whose threshold is a probability: nothing comes where nothing is likely.

pip install langchain-core
"""

from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from doubtless import Gallery


class DoubtlessRetriever(BaseRetriever):
    """Items of a calibrated gallery of vectors as documents.

    gallery      opened with `doubtless.open`
    embed        a text → its vector (1, D), by the model that made the items, or one that shares their space
    threshold    the least probability that a document's label is right
    text_key     which of the items' metadata is the text
    """

    gallery: Any
    embed: Callable[[str], Any]
    threshold: float = 0.5
    k: int = 10
    text_key: str = "text"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        gallery: Gallery = self.gallery
        answer = gallery.ask(self.embed(query), self.k)[0]
        if answer.probability is None:
            raise ValueError("This gallery is not calibrated; run `doubtless calibrate` first.")
        return [
            Document(
                page_content=str(hit.metadata.get(self.text_key, "")),
                id=hit.id,
                metadata={
                    **hit.metadata,
                    "label": hit.label,
                    "probability": hit.probability,
                    "decision": answer.decision,
                    "reason": str(answer.reason),
                },
            )
            for hit in answer.hits
            if hit.probability is not None and hit.probability >= self.threshold
        ]
