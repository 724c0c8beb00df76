"""A search over keys: trials on validation data, a choice, and the chosen settings on test data."""
