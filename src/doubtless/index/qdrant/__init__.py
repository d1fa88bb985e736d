"""An index in Qdrant."""
