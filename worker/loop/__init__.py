"""One step at a time, for all requests of all models of this process."""
