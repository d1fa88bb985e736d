"""Ways into an index: images in bulk, tar shards, parquet files, vectors, FAISS indexes; here or on Ray."""
