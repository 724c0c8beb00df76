"""Who holds what: how unlike the clients are, in a number and in a picture."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.core.measure import VALUES
from bouquet.data.federated import FederatedData
from bouquet.storage.atomic import write_atomically

Counts = NDArray[np.int64]
FEW = 40  # clients whose names a picture has room for
MOST = 60  # classes it has room for


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


def draw(data: FederatedData, title: str, path: Path) -> None:
    """Save a picture of who holds what.

    Clients x classes, the darker, the larger a class is in a client, and beside it how many
    examples each has; of data without classes, that alone.

    Parameters
    ----------
    data : FederatedData
        Any.
    title : str
        Above the picture.
    path : Path
        A PNG file.
    """
    from matplotlib.figure import Figure

    clients = list(data.clients)
    sizes = np.array([len(split.train) for split in data.clients.values()], dtype=np.int64)
    labelled = bool(data.classes) and data.targets != VALUES
    counts = label_table(data) if labelled else np.zeros((len(clients), 0), dtype=np.int64)
    order = _order(counts, sizes)
    rows = len(clients)
    # A Figure by itself knows no windows, so this works where there is no screen.
    figure = Figure(figsize=(9, 2.5 + 0.13 * min(rows, 60)), layout="constrained")
    if labelled:
        held, bars = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        _draw_shares(held, counts[order], data.names)
    else:
        held = bars = figure.subplots()
    held.set_title(title)
    held.set_ylabel("client" if rows <= FEW else f"{rows} clients{_sorted_by(counts)}")
    if rows <= FEW:
        held.set_yticks(range(rows), [_short(clients[place]) for place in order])
    else:
        held.set_yticks([])
    bars.barh(range(rows), sizes[order], height=0.9 if rows <= FEW else 1.0, linewidth=0)
    bars.set(xlabel="training examples", ylim=(rows - 0.5, -0.5))
    bars.xaxis.get_major_locator().set_params(integer=True)
    bars.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_atomically(path, content.getvalue())


def _order(counts: Counts, sizes: Counts) -> list[int]:
    """Where each row is from: few clients as they are, many so that like ones are together."""
    if len(sizes) <= FEW:
        return list(range(len(sizes)))
    kinds = counts.argmax(axis=1) if counts.shape[1] else np.zeros_like(sizes)
    return [int(place) for place in np.lexsort((-sizes, kinds))]


def _sorted_by(counts: Counts) -> str:
    return ", by largest class and size" if counts.shape[1] else ", by size"


def _draw_shares(axes: Any, counts: Counts, names: Sequence[str]) -> None:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    columns = np.argsort(-counts.sum(axis=0), kind="stable")[:MOST]  # of many, the commonest
    columns = np.sort(columns)
    drawn = axes.imshow(
        shares[:, columns], aspect="auto", cmap="Blues", vmin=0, interpolation="nearest"
    )
    some = f"the {MOST} commonest of {len(names)} classes"
    axes.set_xlabel("class" if len(names) <= MOST else some)
    if len(columns) <= 20:
        labels = [_short(names[place]) for place in columns]
        long = max(map(len, labels)) > 2
        axes.set_xticks(range(len(columns)), labels, rotation=45 if long else 0)
    else:
        axes.set_xticks([])
    axes.figure.colorbar(
        drawn, ax=axes, label="share of the client's labels", pad=0.02, fraction=0.05
    )


def _short(name: str) -> str:
    # A dollar would begin mathematics.
    return (name if len(name) <= 16 else f"{name[:15]}…").replace("$", r"\$")
