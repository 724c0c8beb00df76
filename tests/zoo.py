"""Models as users write them, with the layers that are easily judged wrongly."""

import math

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
WORDS = 12


class Dropout(nn.Module):
    """So much dropout that judging with it would show."""

    def __init__(self, shape: Shape, classes: int, rate: float = 0.8) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), 16)
        self.drop = nn.Dropout(rate)
        self.output = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.output(self.drop(self.hidden(x.flatten(1)).relu()))
        return said


class BatchNorm(nn.Module):
    """Learns by the statistics of a batch and is used with those of many."""

    def __init__(self, shape: Shape, classes: int, tracks: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), 16)
        self.norm = nn.BatchNorm1d(16, track_running_stats=tracks)
        self.output = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.output(self.norm(self.hidden(x.flatten(1))).relu())
        return said


class Untracked(BatchNorm):
    """Normalizes by the statistics of whatever batch it is given."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes, tracks=False)


class Embedding(nn.Module):
    """The mean of words' vectors, some of which are dropped whole."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.drop = nn.Dropout1d(0.3)
        self.output = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.output(self.drop(self.words(x)).mean(dim=1))
        return said


class Lstm(nn.Module):
    """Two layers with dropout between them, drawn inside torch's own LSTM."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.output = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.output(self.lstm(self.words(x))[0][:, -1])
        return said


class Attention(nn.Module):
    """Torch's own attention, whose dropout is inside it, written for any batch."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.output = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x)
        read, _ = self.attention(words, words, words)
        said: Tensor = self.output(self.norm(read + words).mean(dim=1))
        return said


class Plain(nn.Module):
    """Neither draws nor mixes: trains in a padded cohort."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.output(x.flatten(1))
        return said


class Noisy(Plain):
    """Adds noise while it learns."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) if self.training else torch.zeros_like(x)
        said: Tensor = super().forward(x + noise)
        return said


class Quiet(nn.Module):
    """Batch statistics behind a scale that starts at 0, as residual networks have them."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), 4)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        nn.init.zeros_(self.norm.weight)
        self.output = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1))
        said: Tensor = self.output(hidden + self.norm(hidden))
        return said


class Folded(nn.Module):
    """Batch norm in a small convolution network, with a mask and an order that never change."""

    order: Tensor
    mask: Tensor

    def __init__(self, shape: Shape, classes: int, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.side = math.isqrt(math.prod(shape))
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3, momentum=momentum)
        self.output = nn.Linear(3 * self.side, classes)
        self.register_buffer("order", torch.arange(self.side).flip(0))
        self.register_buffer("mask", torch.ones(self.side), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 1, self.side, self.side)[..., self.order] * self.mask
        rows = self.norm(self.conv(image)).relu_().mean(dim=-1)
        said: Tensor = self.output(rows.flatten(1))
        return said


class Cumulative(Folded):
    """The same, with the mean over all batches instead of a running one."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes, momentum=None)


class Centred(nn.Module):
    """A statistic of a user's own, made anew by every batch, and a count of examples."""

    centre: Tensor
    seen: Tensor

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(math.prod(shape), classes)
        self.register_buffer("centre", torch.zeros(math.prod(shape)))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if self.training:
            self.seen += len(x)
            self.centre = self.centre + (flat.mean(dim=0) - self.centre) * len(x) / self.seen
        said: Tensor = self.output(flat - self.centre)
        return said


READS_WORDS = (Embedding, Lstm, Attention)
ZOO: dict[str, type[nn.Module]] = {
    one.__name__: one for one in (Dropout, BatchNorm, Embedding, Lstm, Attention, Plain, Noisy)
}


def jitter(x: Tensor, draws: torch.Generator) -> Tensor:
    """An augmentation: every input a little off."""
    noise = torch.randn(x.shape, generator=draws, dtype=x.dtype, device=x.device)
    return x + 0.1 * noise
