"""The ClientApp: a model and a client's data, nothing else."""

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bouquet.flower import client_app


class Net(nn.Module):
    """Two small layers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Ten scores for every image."""
        return self.head(self.hidden(x).relu())


def load(context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A client's share: two digits, of which it holds out a quarter."""
    images, labels = load_digits(return_X_y=True)
    own = labels // 2 == int(context.node_config["partition-id"]) % 5
    x, y = torch.tensor(images[own] / 16).float(), torch.tensor(labels[own])
    held_out = torch.arange(len(y)) % 4 == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


app = client_app(model=Net, data=load, classes=10)
