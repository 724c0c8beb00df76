"""The networks of APFL's experiments and their augmentation.

What the paper does not say is as in the code its authors published: that pixels are normalized, and
the sizes of "2 convolution layers, followed by 2 fully connected layers".
"""

import math

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

# Means and deviations of the pixels of MNIST and CIFAR-10, which are from 0 to 1, by channel.
PIXELS = {
    1: ((0.1307,), (0.3081,)),
    3: ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}


class Normalized(nn.Module):
    """Pixels brought to mean 0 and deviation 1.

    Parameters
    ----------
    channels : int
        1 of MNIST, 3 of CIFAR-10.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        """The same images."""
        mean, deviation = (
            torch.tensor(numbers, dtype=images.dtype).reshape(-1, 1, 1)
            for numbers in PIXELS[self.channels]
        )
        return (images - mean) / deviation


class Logistic(nn.Sequential):
    """Multinomial logistic regression.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("normalized", Normalized(input_shape[0]))
        self.add_module("flatten", nn.Flatten())
        self.add_module("output", nn.Linear(math.prod(input_shape), classes))


class Perceptron(nn.Sequential):
    """Two hidden layers of 200 units.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("normalized", Normalized(input_shape[0]))
        self.add_module("flatten", nn.Flatten())
        self.add_module("hidden1", nn.Linear(math.prod(input_shape), 200))
        self.add_module("relu1", nn.ReLU())
        self.add_module("hidden2", nn.Linear(200, 200))
        self.add_module("relu2", nn.ReLU())
        self.add_module("output", nn.Linear(200, classes))


class Convolutional(nn.Sequential):
    """Two 5x5 convolutions (20 and 50 maps) with pooling, then 512 units.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image: 3 x 32 x 32.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("normalized", Normalized(input_shape[0]))
        self.add_module("convolution1", nn.Conv2d(input_shape[0], 20, 5))
        self.add_module("relu1", nn.ReLU())
        self.add_module("pooling1", nn.MaxPool2d(2))
        self.add_module("convolution2", nn.Conv2d(20, 50, 5))
        self.add_module("relu2", nn.ReLU())
        self.add_module("pooling2", nn.MaxPool2d(2))
        self.add_module("flatten", nn.Flatten())
        self.add_module("hidden", nn.Linear(50 * 5 * 5, 512))
        self.add_module("relu3", nn.ReLU())
        self.add_module("output", nn.Linear(512, classes))


def cropped(images: Tensor, draws: torch.Generator) -> Tensor:
    """Images shifted by up to four pixels each way, black beyond their edges; half mirrored."""
    count, _, height, width = images.shape
    down, right = torch.randint(9, (2, count, 1), generator=draws)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=draws) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    number = torch.arange(count)[:, None, None]
    padded = nnf.pad(images, (4, 4, 4, 4)).movedim(1, -1)
    return padded[number, rows[:, :, None], columns[:, None]].movedim(-1, 1).contiguous()
