"""The schemes' arithmetic and what it is made of: no Flower, no files, no processes."""
