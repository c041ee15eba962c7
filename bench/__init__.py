"""Measurements against llama-server and llama-batched-bench. `python -m bench.compare --help`."""
