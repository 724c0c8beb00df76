"""The papers' experiments: run again, and put beside the numbers they published."""
