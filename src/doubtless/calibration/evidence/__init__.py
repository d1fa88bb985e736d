"""What speaks for a label, measured on a query's hits."""
