"""A LlamaIndex retriever over a gallery, whose threshold is a probability: nothing comes where nothing is likely.

pip install llama-index-core
"""

from collections.abc import Callable
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from doubtless import Gallery


class DoubtlessRetriever(BaseRetriever):
    """Items of a calibrated gallery of vectors as nodes; the score of a node is the probability of its label."""

    def __init__(
        self,
        gallery: Gallery,
        embed: Callable[[str], Any],
        *,
        threshold: float = 0.5,
        k: int = 10,
        text_key: str = "text",
    ) -> None:
        """embed: a text → its vector (1, D); threshold: the least probability that a node's label is right."""
        super().__init__()
        self.gallery, self.embed = gallery, embed
        self.threshold, self.k, self.text_key = threshold, k, text_key

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        answer = self.gallery.ask(self.embed(query_bundle.query_str), self.k)[0]
        if answer.probability is None:
            raise ValueError("This gallery is not calibrated; run `doubtless calibrate` first.")
        return [
            NodeWithScore(
                node=TextNode(
                    id_=hit.id,
                    text=str(hit.metadata.get(self.text_key, "")),
                    metadata={"label": hit.label, "decision": answer.decision, "reason": str(answer.reason)},
                ),
                score=hit.probability,
            )
            for hit in answer.hits
            if hit.probability is not None and hit.probability >= self.threshold
        ]
