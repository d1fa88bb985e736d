"""A gallery of embeddings that keeps their doubt, in a folder or in Milvus: stored durably, searched exactly."""
