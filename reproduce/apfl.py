"""The network of APFL's table 1 and its augmentation, as in the code its authors published.

The paper says "2 convolution layers, followed by 2 fully connected layers".
"""

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

# Of the channels of CIFAR-10's pixels, which are from 0 to 1.
MEANS, DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class Normalized(nn.Module):
    """Pixels brought to mean 0 and deviation 1."""

    def forward(self, images: Tensor) -> Tensor:
        """The same images."""
        mean, deviation = (
            torch.tensor(numbers, dtype=images.dtype).reshape(-1, 1, 1)
            for numbers in (MEANS, DEVIATIONS)
        )
        return (images - mean) / deviation


class Convolutional(nn.Sequential):
    """Two 5x5 convolutions (20 and 50 maps) with pooling, then 512 units.

    Parameters
    ----------
    input_shape : tuple of int
        Of an image: 3 x 32 x 32, pixels from 0 to 1.
    classes : int
        How many there are.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.add_module("normalized", Normalized())
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
