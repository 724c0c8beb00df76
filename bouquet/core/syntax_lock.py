"""One thread at a time parses source code.

Nodes of an inline simulation are threads. Python 3.11 keeps the depth of a syntax tree it
builds in one place for all threads, and two that build at once fail at random ("AST
constructor recursion depth mismatch"). NumPy parses the header of every array it loads,
and PyTorch parses while it imports what gradients inside ``vmap`` need.
"""

import threading

syntax_lock = threading.RLock()
