"""The main job, told as it happens: 36 seasons of real points on three regions, one of which dies on the way."""
