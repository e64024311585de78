"""What the guard is for, shown on a real engine; run by ``make demo``."""
