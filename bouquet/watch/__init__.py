"""Watching runs: the page in a browser, TensorBoard."""
