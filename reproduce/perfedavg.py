"""The network of Per-FedAvg's experiment, which no key describes."""

import math

from torch import nn


class Network(nn.Sequential):
    """Two hidden layers of 80 and 60 units with exponential linear units.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("flatten", nn.Flatten())
        self.add_module("hidden1", nn.Linear(math.prod(input_shape), 80))
        self.add_module("elu1", nn.ELU())
        self.add_module("hidden2", nn.Linear(80, 60))
        self.add_module("elu2", nn.ELU())
        self.add_module("output", nn.Linear(60, classes))
