"""A shard's ordered log at one region's store: the port, a memory adapter and a Redis-protocol adapter."""
