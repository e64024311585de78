"""What the guards cost."""
