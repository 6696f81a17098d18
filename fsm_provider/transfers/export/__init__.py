"""Listings as files: rows of records, sorted on the local disk, then written in one of several formats."""
