"""Who holds what: how unlike the clients are, in a number and in a picture."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.data.federated import FederatedData
from bouquet.storage.files import write_atomically

Counts = NDArray[np.int64]


def label_table(data: FederatedData) -> Counts:
    """Training examples by client and class (of text, positions)."""
    return np.array([data.label_counts(client) for client in data.clients], dtype=np.int64)


def heterogeneity(counts: Counts) -> float:
    """The mean total variation distance of the clients' labels from everyone's.

    Half the sum over the classes of how far a client's share is from the share among all:
    0 if all clients are alike, near 1 if each has what hardly anybody else has.

    Parameters
    ----------
    counts : array of int64
        Examples by client and class.
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    overall = counts.sum(axis=0) / counts.sum()
    return float(np.abs(shares - overall).sum(axis=1).mean() / 2)


def draw(
    counts: Counts, clients: Sequence[str], names: Sequence[str], title: str, path: Path
) -> None:
    """Save a picture of clients x classes: the darker, the larger a class is in a client.

    Parameters
    ----------
    counts : array of int64
        Examples by client and class.
    clients : sequence of str
        Their names, in the same order.
    names : sequence of str
        The classes'.
    title : str
        Above the picture.
    path : Path
        A PNG file.
    """
    from matplotlib.figure import Figure

    shares = counts / counts.sum(axis=1, keepdims=True)
    rows, classes = counts.shape
    # A Figure by itself knows no windows, so this works where there is no screen.
    figure = Figure(figsize=(9, min(10, 2.5 + 0.12 * rows)), layout="constrained")
    held, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    drawn = held.imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    held.set(xlabel="class", ylabel="client", title=title)
    if classes <= 20:
        long = max(map(len, names)) > 2
        held.set_xticks(range(classes), names, rotation=45 if long else 0)
    if rows <= 40:
        held.set_yticks(range(rows), clients)
    sizes.barh(range(rows), counts.sum(axis=1), height=1.0, color="tab:blue", linewidth=0)
    sizes.set(xlabel="training labels")
    sizes.spines[["top", "right"]].set_visible(False)
    figure.colorbar(drawn, ax=held, label="share of the client's examples", pad=0.02, fraction=0.05)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_atomically(path, content.getvalue())
