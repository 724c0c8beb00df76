"""FedU's network on CIFAR-10 and its MNIST, as in its authors' published code."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bouquet.data import DataConfig, FederatedData, load


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


def digits(seed: int) -> FederatedData:
    """MNIST among 100 clients of unequal size, each with two digits that follow each other."""
    return _digits(seed, downsample=0.0)


def fewer_digits(seed: int) -> FederatedData:
    """The same, but half the clients have a fifth of their images."""
    return _digits(seed, downsample=0.8)


def _digits(seed: int, downsample: float) -> FederatedData:
    """Every pixel is brought to mean 0 and deviation 1 over all images.

    No deviation is 0, as those of pixels at the edge would be: 0.001 is added, in steps of gray.
    """
    config = DataConfig(
        name="mnist", clients=100, class_choice="consecutive", sizes="lognormal",
        size_mean=619.0, size_std=344.0, downsample=downsample,
    )  # fmt: skip
    found = load(config, seed, torch.float32)
    mean, deviation = found.x.mean(dim=0), found.x.std(dim=0, correction=0)
    return replace(found, x=(found.x - mean) / (deviation + 0.001 / 255))
