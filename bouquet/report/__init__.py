"""Runs compared on paper: tables, figures, who is helped or hurt."""
