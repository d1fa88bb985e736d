"""Images in a fixed order from wherever they are, one record each: for galleries, for embedding, for training."""
