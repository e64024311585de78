"""The questions asked of a build's code; each answers with a verdict and its evidence."""
