"""The HTTP workers: public APIs in, engine tasks out."""
