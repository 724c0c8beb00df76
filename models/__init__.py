"""The models clients train, and which of their parameters are personal."""

from bouquet.models.buffers import buffers_of, changed, rest
from bouquet.models.config import Layout, ModelConfig
from bouquet.models.custom import Maker, refuse_output
from bouquet.models.splits import (
    PersonalConfig,
    frozen_names,
    layout_of,
    named_splits,
    offers,
    personal_names,
)
from bouquet.models.structure import emptied, filled
from bouquet.models.weights import checksum
from bouquet.models.zoo import MODELS, ModelInfo, build, refuse_inputs, refuse_large, refuse_more

__all__ = [
    "MODELS",
    "Layout",
    "Maker",
    "ModelConfig",
    "ModelInfo",
    "PersonalConfig",
    "buffers_of",
    "build",
    "changed",
    "checksum",
    "emptied",
    "filled",
    "frozen_names",
    "layout_of",
    "named_splits",
    "offers",
    "personal_names",
    "refuse_inputs",
    "refuse_large",
    "refuse_more",
    "refuse_output",
    "rest",
]
