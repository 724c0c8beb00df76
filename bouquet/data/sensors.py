"""Sensors: human activities by subject, and vehicles by sensor."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.data.archives import arrays_of, reading, tar_members, unzipped
from bouquet.data.cache import fetched
from bouquet.data.examples import checked_labels, owned
from bouquet.data.federated import DataConfig, FederatedData
from bouquet.data.images import directory

Floats = NDArray[np.float64]

WINDOW = 128  # 2.56 s at 50 Hz, as in the papers on these recordings
_CHANNELS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")


def har(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Smartphone recordings of 30 subjects (HAPT): windows of 6 channels x 128 samples.

    Windows overlap by half and have one activity each, of six; postural transitions and what
    has no label are left out. The last windows of every activity are held out.
    """
    return _subjects(config, seed, lambda windows: torch.from_numpy(windows).to(dtype))


def har_features(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """The same windows as 30 statistics, each with mean 0 and deviation 1 over all windows."""
    return _subjects(config, seed, lambda windows: _standard(statistics(windows)).to(dtype))


def uci_har(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """The official 561 features of UCI's Human Activity Recognition, by subject.

    ``data.path`` is "UCI HAR Dataset": ``train/{X,y,subject}_train.txt`` and the same of test.
    """
    folder = directory(config)
    parts: dict[str, list[Floats]] = {"X": [], "y": [], "subject": []}
    for part in ("train", "test"):
        for what, found in parts.items():
            file = folder / part / f"{what}_{part}.txt"
            with reading(file):
                found.append(np.loadtxt(file, ndmin=2 if what == "X" else 1))
    features, activities, subjects = (np.concatenate(found) for found in parts.values())
    labels = checked_labels(activities - 1, folder)
    if not len(features) == len(labels) == len(subjects) or labels.max(initial=0) >= len(
        ACTIVITIES
    ):
        raise BadInput(
            f"data.path {config.path!r}: X, y (1 to 6) and subject must have a line per example."
        )
    owners = [f"{int(subject):02d}" for subject in subjects]
    x = torch.from_numpy(features).to(dtype)
    data = owned(config, seed, x, torch.from_numpy(labels), owners, len(ACTIVITIES))
    return replace(data, names=ACTIVITIES)


def vehicle(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Vehicle Sensor: 23 sensors tell two vehicles apart by 100 acoustic and seismic features.

    ``data.path`` is ``vehicle.mat``, or the directory it is in: cells ``X`` (examples x
    features) and ``Y`` (1 or -1), one a sensor.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if not config.path:
        raise BadInput("data.path must name vehicle.mat or the directory it is in, not ''.")
    file = Path(config.path)
    file = file / "vehicle.mat" if file.is_dir() else file
    with reading(file):
        try:
            cells = loadmat(file)
        except (MatReadError, NotImplementedError) as error:  # damaged, or of a later Matlab
            raise ValueError(str(error)) from error
        inputs = [np.asarray(cell, dtype=np.float64) for cell in cells["X"].ravel()]
        signs = [np.asarray(cell).ravel() for cell in cells["Y"].ravel()]
        if [len(one) for one in inputs] != [len(one) for one in signs]:
            raise ValueError("X and Y do not have equally many examples")
    owners = [f"{number:02d}" for number, one in enumerate(signs) for _ in one]
    labels = torch.from_numpy((np.concatenate(signs) > 0).astype(np.int64))
    x = torch.from_numpy(np.concatenate(inputs)).to(dtype)
    return owned(config, seed, x, labels, owners, 2)


def statistics(windows: Floats) -> Floats:
    """Mean, deviation, least, greatest and mean step of every channel: 30 numbers a window."""
    steps = np.abs(np.diff(windows, axis=2)).mean(axis=2)
    parts = [windows.mean(2), windows.std(2), windows.min(2), windows.max(2), steps]
    return np.concatenate(parts, axis=1)


def _standard(features: Floats) -> Tensor:
    return torch.from_numpy((features - features.mean(0)) / features.std(0))


def _subjects(config: DataConfig, seed: int, made: Callable[[Floats], Tensor]) -> FederatedData:
    if config.path:
        folder = directory(config)
        files = [*folder.rglob("HAPT.pkl.gz")]
        if not files:
            raise BadInput(f"data.path {config.path!r} has no HAPT.pkl.gz.")
        archive = files[0]
        with reading(archive):
            recordings = arrays_of(unzipped(archive.read_bytes()))
    else:
        archive = fetched(config.name)
        with reading(archive):
            found = tar_members(archive, {"res/HAPT.pkl.gz": "HAPT.pkl.gz"})
            recordings = arrays_of(unzipped(found["HAPT.pkl.gz"]))
    windows, labels, owners = [], [], []
    with reading(archive):
        for subject, frames in recordings.items():
            for frame in frames:
                for window, activity in windows_of(*_columns(frame)):
                    windows.append(window)
                    labels.append(activity)
                    owners.append(f"{subject:02d}")
    x, y = made(np.stack(windows)), torch.tensor(labels)
    data = owned(config, seed, x, y, owners, len(ACTIVITIES), ordered=True)
    return replace(data, names=ACTIVITIES)


def windows_of(signals: Floats, labels: NDArray[np.int64]) -> Iterator[tuple[Floats, int]]:
    """Windows with their activity from 0: every 64 samples, those of one activity alone.

    Parameters
    ----------
    signals : array
        Channels x samples.
    labels : array
        The activity of every sample: 1 to 6, others are none of them.
    """
    for start in range(0, len(labels) - WINDOW + 1, WINDOW // 2):
        within = slice(start, start + WINDOW)
        activity = int(labels[start])
        if 1 <= activity <= len(ACTIVITIES) and (labels[within] == activity).all():
            yield signals[:, within], activity - 1


def _columns(frame: Any) -> tuple[Floats, NDArray[np.int64]]:
    """Signals and labels out of the state of an old data frame: axes, blocks, their columns."""
    _, blocks, names, _ = frame.state["_data"].state
    columns = {
        name: row
        for block, kept in zip(blocks, names, strict=True)
        for name, row in zip(kept["data"], block, strict=True)
    }
    return np.stack([columns[name] for name in _CHANNELS]), columns["label"]
