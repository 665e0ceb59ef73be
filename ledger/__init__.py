"""A shard's state folded from its journal (LMDB), and the authority's pending overlay above it."""
