"""What the engine and its clients share: configuration, messages, sockets and the slab. Imports neither side."""
