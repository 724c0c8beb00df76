"""A Flower app with a personalized strategy."""
