"""A region's runtime: supervisor, launcher, HTTP app, routing, links, server commands."""
