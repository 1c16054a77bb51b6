"""General helpers: checks, JSON, untrusted and atomic files, terminal text, downloads."""
