"""The models clients train, and which of their parameters are personal."""

from models.config import Layout, ModelConfig
from models.own import Maker, refuse_output
from models.splits import PersonalConfig, layout_of, offers, personal_names
from models.zoo import MODELS, ModelInfo, build, refuse_inputs

__all__ = [
    "MODELS",
    "Layout",
    "Maker",
    "ModelConfig",
    "ModelInfo",
    "PersonalConfig",
    "build",
    "layout_of",
    "offers",
    "personal_names",
    "refuse_inputs",
    "refuse_output",
]
