"""What is served, without HTTP: requests of many askers, batched and answered."""
