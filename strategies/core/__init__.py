"""The machinery all schemes share."""
