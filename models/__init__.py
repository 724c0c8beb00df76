"""The models clients train."""

from models.zoo import MODELS, ModelConfig, ModelInfo, build

__all__ = ["MODELS", "ModelConfig", "ModelInfo", "build"]
