"""The networks of FedU's experiments on MNIST and CIFAR-10, as in its authors' published code."""

import functools

import torch
from torch import Tensor, nn

from bouquet.data import DataConfig, load


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


class Standardized(nn.Module):
    """Every pixel of MNIST brought to mean 0 and deviation 1 over all its images."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.deviation = pixels()

    def forward(self, images: Tensor) -> Tensor:
        """The same images."""
        mean, deviation = (one.to(images.dtype) for one in (self.mean, self.deviation))
        return (images - mean) / deviation


@functools.cache
def pixels() -> tuple[Tensor, Tensor]:
    """The mean and deviation of every pixel; no deviation is 0, as many pixels' would be."""
    images = load(DataConfig(name="mnist", clients=1, partition="iid"), 0, torch.float32).x
    return images.mean(dim=0), images.std(dim=0, correction=0) + 0.001 / 255


class Deep(nn.Sequential):
    """Two hidden layers of 100 units, for MNIST.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image: 1 x 28 x 28.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("standardized", Standardized())
        self.add_module("flatten", nn.Flatten())
        self.add_module("hidden1", nn.Linear(28 * 28, 100))
        self.add_module("relu1", nn.ReLU())
        self.add_module("hidden2", nn.Linear(100, 100))
        self.add_module("relu2", nn.ReLU())
        self.add_module("output", nn.Linear(100, classes))
