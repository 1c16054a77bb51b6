"""Build models from configs, passing each part only the values that it needs."""

from typing import overload

from torch import nn

from vitreous.model import options, position
from vitreous.model.attention import PoolingAttention, SelfAttention
from vitreous.model.block import Block, GeluMlp, Mlp, SwiGluMlp
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.encoder import Encoder
from vitreous.model.heads import build_head
from vitreous.model.init import small_, xavier_
from vitreous.model.patch import PatchEmbedding
from vitreous.model.pooling import AttentionPooling, AveragePooling, ClassTokenPooling, Pooling
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.resnet import HybridStem, ResNet
from vitreous.model.segmenter import MaskTransformer, PyramidFusion, Segmenter
from vitreous.model.swin import Stage, Swin
from vitreous.model.swin_block import CosineSelfAttention, PatchMerging, SwinBlock, WindowSelfAttention
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2
from vitreous.model.tokens import PrefixTokens, UntiedNorm
from vitreous.model.vit import ViT
from vitreous.model.window_position import BiasMlp, BiasTable


@overload
def build(config: ViTConfig) -> ViT: ...
@overload
def build(config: SwinConfig) -> Swin: ...
@overload
def build(config: ResNetConfig) -> ResNet: ...
@overload
def build(config: SegmenterConfig) -> Segmenter: ...
@overload
def build(config: ModelConfig) -> Model: ...
def build(config: ModelConfig) -> Model:
    """Build a randomly initialised model from its config.

    >>> build(ViTConfig(width=192, num_heads=3, mlp_width=768, num_classes=10)).config.num_tokens
    197
    """
    match config:
        case ViTConfig():
            return build_vit(config)
        case SwinConfig():
            return build_swin(config)
        case ResNetConfig():
            return ResNet(config)
        case SegmenterConfig():
            return build_segmenter(config)
    raise TypeError(f"config must be a model config, got {type(config).__name__}")


def build_vit(config: ViTConfig) -> ViT:
    stem: nn.Module = nn.Identity()
    channels = config.channels
    if config.stem is not None:
        stem = HybridStem(config.channels, config.stem.stages, config.stem.width, config.stem.numerics)
        channels = stem.channels
    norm_after_mean = config.pool == options.GlobalAverage(norm="after")
    return ViT(
        config,
        stem=stem,
        patches=PatchEmbedding(
            channels,
            config.width,
            config.patch_size,
            config.patch_method,
            config.pad,
            norm_eps=config.norm_eps if config.patch_norm else None,
            bias=config.patch_bias,
            truncate=config.truncate,
        ),
        prefix=PrefixTokens(config.width, config.class_token, config.distillation_token, config.registers),
        position=build_position(config),
        pre_norm=nn.LayerNorm(config.width, config.norm_eps) if config.pre_norm else nn.Identity(),
        encoder=Encoder([build_block(config, layer) for layer in range(config.depth)]),
        norm=nn.Identity() if norm_after_mean else build_norm(config),
        pool=build_pool(config),
        projection=(
            nn.Identity()
            if config.projection is None
            else xavier_(nn.Linear(config.width, config.projection, bias=False))
        ),
        head=build_head(config.head, config.feature_width, config.num_classes, config.norm_eps),
        distillation_head=(
            build_head(config.head, config.width, config.num_classes, config.norm_eps)
            if config.distillation_token
            else None
        ),
    )


def build_swin(config: SwinConfig) -> Swin:
    post_norm = isinstance(config.version, SwinV2)
    stages = []
    for stage, width in enumerate(config.stage_widths):
        first = sum(config.depths[:stage])
        merge = PatchMerging(width // 2, config.norm_eps, post_norm) if stage else None
        blocks = [build_swin_block(config, stage, first + number) for number in range(config.depths[stage])]
        stages.append(Stage(merge, blocks, config.window, config.window_rule))
    model = Swin(
        config,
        patches=PatchEmbedding(config.channels, config.width, config.patch_size, pad=True),
        stages=stages,
        norm=nn.LayerNorm(config.feature_width, config.norm_eps),
        head=build_head(options.LinearHead(), config.feature_width, config.num_classes),
    )
    for module in model.stages.modules():
        if isinstance(module, nn.Linear):  # as in Microsoft's code
            small_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def build_swin_block(config: SwinConfig, stage: int, layer: int) -> SwinBlock:
    width, heads, bias, dropout = config.stage_widths[stage], config.stage_heads[stage], config.qkv_bias, config.dropout
    match config.version:
        case SwinV1():
            table = BiasTable(heads, config.stage_windows[stage], config.window_rule)
            attention = WindowSelfAttention(width, heads, table, bias, dropout.attention, dropout.hidden)
        case SwinV2():
            mlp = BiasMlp(heads, config.pretrained_windows[stage])
            attention = CosineSelfAttention(width, heads, mlp, bias, dropout.attention, dropout.hidden)
    return SwinBlock(
        attention,
        GeluMlp(width, config.stage_mlp_widths[stage], "erf", dropout.hidden),
        width=width,
        norm_eps=config.norm_eps,
        post_norm=isinstance(config.version, SwinV2),
        stochastic_depth=config.stochastic_depth * layer / max(config.num_layers - 1, 1),
    )


def build_segmenter(config: SegmenterConfig, encoder: Model | None = None) -> Segmenter:
    """Build a segmenter, optionally around an existing encoder."""
    widths, classes = config.encoder.pyramid_widths, config.num_classes
    match config.decoder:
        case options.LinearDecoder(cells):
            decoder: nn.Module = xavier_(nn.Linear(widths[-1], classes * cells**2))
        case options.MaskDecoder(depth):
            shape = (config.encoder.num_heads, config.encoder.head_dim, config.encoder.mlp_width)
            decoder = MaskTransformer(widths[-1], *shape, config.encoder.norm_eps, classes, depth)
        case options.PyramidDecoder(width):
            decoder = PyramidFusion(widths, width, classes, config.encoder.norm_eps)
    return Segmenter(config, build(config.encoder) if encoder is None else encoder, decoder)


def build_block(config: ViTConfig, layer: int) -> Block:
    return Block(
        attention=SelfAttention(
            config.width,
            config.num_heads,
            head_dim=config.head_dim,
            qkv_bias=config.qkv_bias,
            key_bias=config.key_bias,
            qk_norm_eps=config.norm_eps if config.qk_norm else None,
            qk_scale=config.qk_scale,
            output_norm_eps=config.norm_eps if config.attention_output_norm else None,
            attention_dropout=config.dropout.attention,
            output_dropout=config.dropout.hidden,
        ),
        mlp=build_mlp(config),
        width=config.width,
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
        stochastic_depth=config.stochastic_depth * layer / max(config.depth - 1, 1),
    )


def build_mlp(config: ViTConfig) -> Mlp:
    match config.mlp:
        case options.Gelu(approximation):
            return GeluMlp(config.width, config.mlp_width, approximation, config.dropout.hidden)
        case options.SwiGlu(norm):
            eps = config.norm_eps if norm else None
            return SwiGluMlp(config.width, config.mlp_width, config.dropout.hidden, eps)


def build_norm(config: ViTConfig) -> nn.Module:
    if config.untied_norms:
        return UntiedNorm(config.width, config.norm_eps, config.num_prefix_tokens)
    return nn.LayerNorm(config.width, config.norm_eps)


def build_learned_position(config: ViTConfig) -> position.Learned1dPosition | None:
    if config.learned_position is None:
        return None
    entries = (config.class_token + config.distillation_token) * config.learned_position.prefix_entries
    return position.Learned1dPosition(config.width, config.grid, entries, config.learned_position.interpolation)


def build_position(config: ViTConfig) -> position.PositionEmbedding:
    entries = config.class_token + config.distillation_token
    match config.position:
        case options.NoPosition():
            return position.PositionEmbedding()
        case options.Learned1d(own, interpolation):
            return position.Learned1dPosition(config.width, config.grid, entries if own else 0, interpolation)
        case options.Learned2d(own, interpolation):
            return position.Learned2dPosition(config.width, config.grid, entries if own else 0, interpolation)
        case options.SinCos2d(convention, temperature):
            return position.SinCos2dPosition(config.width, convention, temperature)
        case options.RelativeBias(interpolation):
            return position.RelativeBiasPosition(config.num_heads, config.grid, interpolation)
        case options.Rotary2d(base, coordinates, reference_grid, period_dtype):
            learned = build_learned_position(config)
            return position.Rotary2dPosition(
                config.head_width, base, coordinates, reference_grid, period_dtype, learned
            )
        case options.MixedRotary2d(base):
            learned, heads = build_learned_position(config), config.num_heads
            return position.MixedRotary2dPosition(config.depth, heads, config.head_width, base, learned)
        case options.Conditional(kernel_size, blocks):
            return position.ConditionalPosition(config.width, kernel_size, min(blocks, config.depth))


def build_pool(config: ViTConfig) -> Pooling:
    match config.pool:
        case options.ClassToken():
            return ClassTokenPooling()
        case options.GlobalAverage(norm):
            return AveragePooling(nn.LayerNorm(config.width, config.norm_eps) if norm == "after" else nn.Identity())
        case options.AttentionPool():
            attention = PoolingAttention(config.width, config.num_heads)
            return AttentionPooling(attention, build_mlp(config), config.width, config.norm_eps)
