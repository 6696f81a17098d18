"""Listings as files: rows of records, kept in order on this machine's disk, then written format by format."""
