"""What `make` runs before anything is installed: standard library only."""
