"""Bouquet: federated learning where every client ends up with a model of its own."""
