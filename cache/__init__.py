"""Tuned entries on disk: keys, entries, the user's store, shipped files, merging."""
