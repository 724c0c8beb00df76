"""The networks for text: they read tokens and score, at every position, the one that follows.

An example is a row of L tokens, whole numbers below the number of classes; the output has
the axes example, position, class. What is said at a position depends on the tokens up to it.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from bouquet.core.errors import BadInput
from bouquet.models.config import Layout, ModelConfig, Shape


def transformer(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """A causal transformer with learned positions, as in Pillutla et al. (appendix B.1.1)."""
    if config.width % config.heads:
        raise BadInput(
            f"model.width must be a multiple of model.heads = {config.heads}, not {config.width}."
        )
    length = _length("transformer", input_shape)
    return Transformer(length, classes, config.width, config.blocks, config.heads)


def char_lstm(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """An LSTM over embedded characters, as in McMahan et al. (FedAvg)."""
    _length("char-lstm", input_shape)
    return CharLstm(classes, config.width, config.layers)


class Transformer(nn.Module):
    """Blocks of attention between an embedding and its transpose.

    The output layer reuses the embedding's weights: without them a second copy would be the
    largest part of the model. The paper's counts say that its model does the same.

    Parameters
    ----------
    length : int
        Most positions of an example.
    vocabulary : int
        How many tokens there are.
    width, blocks, heads : int
        Numbers per position; blocks, and attention heads in each.
    """

    def __init__(self, length: int, vocabulary: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.output = Scores(width, vocabulary)
        # Small, because the same numbers score the tokens at the end.
        for weight in (self.embedding.weight, self.positions):
            nn.init.normal_(weight, std=0.02)
        # Blocks in place of the embedding and the output layer, which are too large to keep.
        ends = {"input": "blocks.0.*", "output": f"blocks.{blocks - 1}.*"}
        self.layout = Layout(ends, adapters="blocks.*.attention.output blocks.*.forward2")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next token at every position."""
        inner = self.embedding(x) + self.positions[: x.shape[-1]]
        scores: Tensor = self.output(self.norm(self.blocks(inner)), self.embedding.weight)
        return scores


class Block(nn.Module):
    """Causal attention, then two layers at every position, each added to what came in.

    Each normalizes what it reads, not the sum: plain SGD gets further this way.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.forward1 = nn.Linear(width, 4 * width)
        self.forward2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What every position has become."""
        x = x + self.attention(self.norm1(x))
        changed: Tensor = x + self.forward2(relu(self.forward1(self.norm2(x))))
        return changed


class Attention(nn.Module):
    """Every position reads from those before it and itself.

    Written out, because torch's fused attention has no second derivative and no batching
    rule, and meta-learning and cohorts need them.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The mixture each position reads, with the axes of ``x``: example, position, number."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for part in self.input(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        length = x.shape[-2]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        read: Tensor = self.output((weights @ value).transpose(-3, -2).flatten(-2))
        return read


class Scores(nn.Module):
    """An output layer with another layer's weights, which its caller passes."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Each row of ``weight`` against ``x``."""
        return linear(x, weight)


class CharLstm(nn.Module):
    """Stacked LSTM layers between an embedding of 8 numbers and a linear layer."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        sizes = [8] + [width] * layers
        self.layers = nn.Sequential(*(Lstm(a, width) for a in sizes[:-1]))
        self.output = nn.Linear(width, vocabulary)
        self.layout = Layout()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at every position."""
        scores: Tensor = self.output(self.layers(self.embedding(x)))
        return scores


class Lstm(nn.Module):
    """One LSTM layer; torch's own keeps its weights in a list that cannot be swapped."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width_in, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The hidden state at every position."""
        gates = self.input(x)
        state = torch.zeros_like(gates[:, 0].chunk(4, dim=-1)[0])
        memory, states = state, []
        for given in gates.unbind(1):
            keep, write, read, new = (given + self.recurrent(state)).chunk(4, dim=-1)
            memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
            state = read.sigmoid() * memory.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


def _length(model: str, input_shape: Shape) -> int:
    if len(input_shape) != 1:
        raise BadInput(
            f"model.name must not be {model!r} for examples of shape "
            f"{' x '.join(map(str, input_shape))}: it reads rows of tokens."
        )
    return input_shape[0]
