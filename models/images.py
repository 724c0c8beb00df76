"""The networks for images: examples of channels x height x width, or flat squares."""

import math

from torch import nn

from bouquet.core.errors import BadInput
from bouquet.models.config import Layout, ModelConfig, Shape
from bouquet.models.simple import Chain
from bouquet.models.vision import torchvision


def cnn(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions with pooling and a hidden layer, as in McMahan et al. (FedAvg).

    Deng et al. (APFL) use two convolutions and two fully connected layers on CIFAR-10 and
    do not say which: this network is of that shape too.
    """
    channels, height, width = _image("cnn", input_shape)
    return Chain(
        Layout(adapters="conv*", split_input="conv1"),
        image=_unflatten(input_shape, channels, height, width),
        conv1=nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, kernel_size=5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        hidden=nn.Linear(64 * (height // 4) * (width // 4), 512),
        relu3=nn.ReLU(),
        output=nn.Linear(512, classes),
    )


def resnet18(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """Torchvision's ResNet-18 with group norm, as in Pillutla et al. (appendix B.1).

    Images with a side under 64 pixels get a 3x3 first convolution that keeps their size,
    and no pooling after it.
    """
    channels, height, width = _image("resnet18", input_shape)
    small = min(height, width) < 64
    net = torchvision().models.resnet18(num_classes=classes, norm_layer=group_norm)
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    kernel, stride = (3, 1) if small else (7, 2)
    stem = nn.Conv2d(channels, 64, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    return Chain(
        Layout(splits={"input": "input.*"}, adapters="layer*.conv?", split_input="input.conv"),
        image=_unflatten(input_shape, channels, height, width),
        input=Chain(Layout(), conv=stem, norm=net.bn1),
        relu=nn.ReLU(),
        pool=nn.Identity() if small else net.maxpool,
        layer1=net.layer1,
        layer2=net.layer2,
        layer3=net.layer3,
        layer4=net.layer4,
        average=net.avgpool,
        flatten=nn.Flatten(),
        output=net.fc,
    )


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm with 16 channels a group, or all of them where there are fewer."""
    groups = channels // 16 if channels % 16 == 0 else 1
    return nn.GroupNorm(groups, channels)


def _image(model: str, input_shape: Shape) -> tuple[int, int, int]:
    """Channels, height and width of an example; a flat one is a square of one channel."""
    shape = input_shape
    if len(shape) == 1:
        side = math.isqrt(shape[0])
        shape = (shape[0] // side**2, side, side)
    # Each pooling halves the sides, and half of one pixel is none.
    if len(shape) != 3 or math.prod(shape) != math.prod(input_shape) or min(shape[1:]) < 4:
        raise BadInput(
            f"model.name must not be {model!r} for examples of shape "
            f"{' x '.join(map(str, input_shape))}: it needs channels x height x width, or a flat "
            "square image, with sides of at least 4."
        )
    return shape[0], shape[1], shape[2]


def _unflatten(input_shape: Shape, channels: int, height: int, width: int) -> nn.Module:
    flat = len(input_shape) == 1
    return nn.Unflatten(1, (channels, height, width)) if flat else nn.Identity()
