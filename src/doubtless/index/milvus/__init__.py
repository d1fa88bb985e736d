"""An index in Milvus: a file of Milvus Lite, or a collection of a server or cluster."""
