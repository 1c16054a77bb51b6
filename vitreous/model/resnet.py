"""ResNets with weight standardisation and GroupNorm: the stem of hybrid models, and BiT, the ViT paper's baseline.

Hybrids apply norm and ReLU after each convolution. BiT, a ResNet-v2, applies them before each convolution.

b: batch; c: channels; h, w: height and width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.model.config import ResNetConfig
from vitreous.model.init import lecun_normal_
from vitreous.model.inputs import check_images, check_matches
from vitreous.model.options import ResNetNumerics
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features, from_feature_map


def same_padding(x: Float[Tensor, "b c h w"], kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "b c y x"]:
    """Apply TensorFlow's SAME padding, for ceil(size / stride) outputs. An odd pixel is added right or below."""
    amounts = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in (x.shape[3], x.shape[2])]
    return F.pad(x, [half for amount in amounts for half in (amount // 2, amount - amount // 2)], value=value)


def centred_padding(
    x: Float[Tensor, "b c h w"], kernel: int, stride: int, value: float = 0.0
) -> Float[Tensor, "b c y x"]:
    """Pad all sides equally, as in BiT."""
    return F.pad(x, [(kernel - 1) // 2] * 4, value=value)


Padding = Callable[[Tensor, int, int, float], Tensor]


class StandardConv(nn.Conv2d):
    """Convolution with filters standardised to mean 0 and std 1.

    Google's ViT adds 1e-5 to the std. BiT adds 1e-10 to the variance, and timm's hybrids add 1e-8.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, padding: Padding, numerics: ResNetNumerics):
        super().__init__(inputs, outputs, kernel, stride, bias=False)
        self.pad, self.numerics = padding, numerics
        lecun_normal_(self)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k y x"]:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        match self.numerics:
            case "google":
                std = variance.sqrt() + 1e-5
            case "timm":
                std = (variance + 1e-8).sqrt()
            case "bit":
                std = (variance + 1e-10).sqrt()
        weight = (self.weight - mean) / std
        return F.conv2d(self.pad(x, self.kernel_size[0], self.stride[0], 0.0), weight, stride=self.stride)


def group_norm(channels: int, numerics: ResNetNumerics) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6 if numerics == "google" else 1e-5)


class PostActivationUnit(nn.Module):
    """Bottleneck of hybrids: convolution, norm, ReLU, with the last ReLU after the residual sum."""

    padding = staticmethod(same_padding)

    def __init__(self, inputs: int, width: int, stride: int, numerics: ResNetNumerics):
        super().__init__()
        outputs, how = 4 * width, (self.padding, numerics)
        self.conv1, self.norm1 = StandardConv(inputs, width, 1, 1, *how), group_norm(width, numerics)
        self.conv2, self.norm2 = StandardConv(width, width, 3, stride, *how), group_norm(width, numerics)
        self.conv3, self.norm3 = StandardConv(width, outputs, 1, 1, *how), group_norm(outputs, numerics)
        nn.init.zeros_(self.norm3.weight)  # units start as the identity
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            projection = StandardConv(inputs, outputs, 1, stride, *how)
            self.shortcut = nn.Sequential(projection, group_norm(outputs, numerics))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k y x"]:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.shortcut(x) + self.norm3(self.conv3(y)))


class PreActivationUnit(nn.Module):
    """Bottleneck of BiT: norm, ReLU, convolution, with nothing after the residual sum."""

    padding = staticmethod(centred_padding)

    def __init__(self, inputs: int, width: int, stride: int, numerics: ResNetNumerics):
        super().__init__()
        outputs, how = 4 * width, (self.padding, numerics)
        self.norm1, self.conv1 = group_norm(inputs, numerics), StandardConv(inputs, width, 1, 1, *how)
        self.norm2, self.conv2 = group_norm(width, numerics), StandardConv(width, width, 3, stride, *how)
        self.norm3, self.conv3 = group_norm(width, numerics), StandardConv(width, outputs, 1, 1, *how)
        projects = inputs != outputs or stride != 1
        self.shortcut = StandardConv(inputs, outputs, 1, stride, *how) if projects else None

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k y x"]:
        y = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        return shortcut + self.conv3(F.relu(self.norm3(y)))


class Stages(nn.Sequential):
    """ResNet stages. Each stage after the first halves the resolution and doubles the width."""

    def __init__(
        self,
        unit: type[PostActivationUnit] | type[PreActivationUnit],
        stages: tuple[int, ...],
        width: int,
        numerics: ResNetNumerics,
    ):
        units: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(stages):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                units.append(unit(channels, width << stage, stride, numerics))
                channels = 4 * width << stage
        super().__init__(*units)
        self.channels = channels


class HybridStem(nn.Module):
    """ResNet stem of a hybrid model. Its feature map is cut into patches."""

    def __init__(self, channels: int, stages: tuple[int, ...], width: int, numerics: ResNetNumerics = "google"):
        super().__init__()
        self.root = StandardConv(channels, width, 7, 2, same_padding, numerics)
        self.norm = group_norm(width, numerics)
        self.stages = Stages(PostActivationUnit, stages, width, numerics)
        self.channels = self.stages.channels

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k y x"]:
        x = F.relu(self.norm(self.root(images)))
        x = F.max_pool2d(same_padding(x, 3, 2, float("-inf")), 3, 2)
        return self.stages(x)


class ResNet(Model):
    """BiT, the paper's convolutional baseline.

    >>> from vitreous.model.config import ResNetConfig
    >>> ResNet(ResNetConfig(num_classes=10))(torch.zeros(1, 3, 64, 96)).shape
    torch.Size([1, 10])
    """

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config: ResNetConfig = config
        self.root = StandardConv(config.channels, config.width, 7, 2, centred_padding, "bit")
        self.stages = Stages(PreActivationUnit, config.stages, config.width, "bit")
        self.norm = group_norm(self.stages.channels, "bit")
        self.head = self.new_head(config.num_classes)

    @property
    def image_filters(self) -> tuple[Float[Tensor, "k c ph pw"], str]:
        return self.root.weight, "the first convolution"

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        return self.head(self.pooled(images))

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        return from_feature_map(self.feature_map(images))

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.feature_map(images).mean(dim=(2, 3))

    def feature_map(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k y x"]:
        check_images(images, self.config.channels)
        try:
            x = self.root(images)
        except RuntimeError:
            check_matches(images, self.root.weight)
            raise
        x = F.max_pool2d(centred_padding(x, 3, 2), 3, 2)  # BiT pads with zeros here, not with -inf
        return F.relu(self.norm(self.stages(x)))
