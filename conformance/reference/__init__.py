"""The papers' algorithms in numpy, a short file each, to be held beside the paper.

They import nothing but numpy, take no step by automatic differentiation and share no line with the
library beside which they stand.
"""
