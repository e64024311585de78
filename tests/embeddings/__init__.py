"""Real gather and merge code of many releases, on items with right and wrong numbers of rows."""
