"""Helpers that know nothing about images: checks, JSON, safe and atomic files, text for terminals, downloads."""
