"""`cluster.yaml` as pydantic models; an error names the path of the bad key and what is allowed."""
