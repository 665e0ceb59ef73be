"""Measurements of a running Laurel beside what people would use instead: `python -m benchmarks ingest|reads|failover|shards|publish`."""
