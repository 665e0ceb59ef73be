"""The rules of a board, pure: policies, comparator, numbers, identities, checksum, rank index. Imports nothing of ours."""
