"""The models clients train, and which of their parameters are personal."""

from models.splits import PersonalConfig, personal_names
from models.zoo import MODELS, ModelConfig, ModelInfo, build

__all__ = ["MODELS", "ModelConfig", "ModelInfo", "PersonalConfig", "build", "personal_names"]
