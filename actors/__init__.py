"""One Ray actor a file, each a plain class; only `actors.remote` calls `ray.remote`."""
