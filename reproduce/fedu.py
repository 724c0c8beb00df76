"""The network of FedU's experiments on CIFAR-10, as in the code its authors published."""

from torch import Tensor, nn


class Centred(nn.Module):
    """Pixels from -1 to 1 instead of from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        """The same images."""
        return 2 * images - 1


class Network(nn.Sequential):
    """Two 5x5 convolutions (6 and 16 maps) with pooling, then 120 and 100 units.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image: 3 x 32 x 32, pixels from 0 to 1.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("centred", Centred())
        self.add_module("convolution1", nn.Conv2d(input_shape[0], 6, 5))
        self.add_module("relu1", nn.ReLU())
        self.add_module("pooling1", nn.MaxPool2d(2))
        self.add_module("convolution2", nn.Conv2d(6, 16, 5))
        self.add_module("relu2", nn.ReLU())
        self.add_module("pooling2", nn.MaxPool2d(2))
        self.add_module("flatten", nn.Flatten())
        self.add_module("hidden1", nn.Linear(16 * 5 * 5, 120))
        self.add_module("relu3", nn.ReLU())
        self.add_module("hidden2", nn.Linear(120, 100))
        self.add_module("relu4", nn.ReLU())
        self.add_module("output", nn.Linear(100, classes))
