"""Tests of what `register` and `unpatch` do to a whole process; each runs in one of its own."""
