"""Models with unusual numbers of channels, and unsupported models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitreous
from optional_imports import import_timm, import_torchvision, import_transformers
from parity import check_close, noisy
from timm_models import PLAIN, SIZES
from vitreous.model.options import IMAGENET, Preprocessing
from vitreous.weights.convert import convert
from vitreous.weights.io.errors import BadCheckpoint

SIZE = (32, 32)
THEIRS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8, "image_size": 32}


def timm_model(name: str = PLAIN, **given: Any) -> nn.Module:
    return noisy(import_timm().create_model(name, **{**SIZES, "num_classes": 7, **given}))


# ---- Unusual numbers of channels -------------------------------------------------------------------------------------


def distilled(channels: int) -> nn.Module:
    return timm_model("deit_base_distilled_patch16_224", in_chans=channels)


def scaled(channels: int) -> nn.Module:
    return timm_model(init_values=0.1, in_chans=channels)


def torchvision_model(channels: int) -> nn.Module:
    vit = import_torchvision().models.vision_transformer.VisionTransformer
    model = vit(32, 8, 2, 2, 128, 256, num_classes=7)
    model.conv_proj = nn.Conv2d(channels, 128, 8, 8)
    return noisy(model)


def dinov2_model(channels: int) -> nn.Module:
    """A timm model with DINOv2's tensor names and without the mask token."""
    model = timm_model(init_values=0.1, in_chans=channels, num_classes=0)
    model.register_buffer("mask_token", torch.zeros(1, 128))
    return model


def mae_model(channels: int) -> nn.Module:
    return timm_model(in_chans=channels, global_pool="avg")


MAKERS: dict[str, Callable[[int], nn.Module]] = {
    "timm": distilled,
    "timm ": scaled,
    "torchvision": torchvision_model,
    "dinov2": dinov2_model,
    "mae": mae_model,
}


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("format", MAKERS)
def test_other_numbers_of_channels_are_read(format: str, channels: int, tmp_path: Path) -> None:
    """All channels get the average of ImageNet's means, as in timm."""
    model = MAKERS[format](channels)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth", format=format.strip())
    check_close(loaded, model, SIZE, channels=channels)
    shown = loaded.config.preprocessing
    assert shown.mean == pytest.approx([sum(IMAGENET.mean) / 3])
    assert shown.std == pytest.approx([sum(IMAGENET.std) / 3])
    assert any("averaged over the RGB" in line for line in loaded.provenance["assumed"])


def test_grey_transformers_model_without_processor_is_read(tmp_path: Path) -> None:
    transformers = import_transformers()
    model = noisy(transformers.Dinov2Model(transformers.Dinov2Config(**THEIRS, mlp_ratio=2, num_channels=1)))
    model.save_pretrained(tmp_path)
    loaded = vitreous.load(tmp_path)
    check_close(loaded, lambda images: model(images).pooler_output, SIZE, channels=1)
    assert loaded.config.preprocessing.mean == pytest.approx([sum(IMAGENET.mean) / 3])


@pytest.mark.slow
@pytest.mark.parametrize(("format", "distil"), [("paddle", True), ("paddlevit", True), ("paddlevit", False)], ids=str)
def test_grey_models_round_trip_through_paddle(format: str, distil: bool, tmp_path: Path) -> None:
    fields = {"distillation_token": distil, "channels": 1, "mlp": {"kind": "Gelu", "approximation": "erf"}}
    sizes = {"width": 128, "depth": 1, "num_heads": 2, "mlp_width": 96, "preprocessing": Preprocessing()}
    model = noisy(vitreous.create("ViT-B/16", image_size=32, num_classes=3, overrides={**fields, **sizes}))
    vitreous.save(model, tmp_path / "m.pdparams", format=format)
    check_close(vitreous.load(tmp_path / "m.pdparams", format=format), model, SIZE, channels=1)


@pytest.mark.slow
def test_converted_grey_models_can_be_loaded(tmp_path: Path) -> None:
    torch.save(mae_model(1).state_dict(), tmp_path / "m.pth")
    assert convert(tmp_path / "m.pth", tmp_path / "x.pth", to="mae").differences[-1].largest == 0


def test_three_channels_keep_separate_means(tmp_path: Path) -> None:
    torch.save(distilled(3).state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert loaded.config.preprocessing == IMAGENET
    assert "preprocessing: DeiT default" in loaded.provenance["assumed"]


# ---- Unsupported models ----------------------------------------------------------------------------------------------

# timm architectures and the unsupported part of each. Depth and sizes come from SIZES.
UNSUPPORTED_TIMM = {
    "beit_base_patch16_224": r"relative positions \(rel_pos\)",
    "eva02_enormous_patch14_clip_224": "norms after the layers",
    "cait_xxs24_224": r"talking heads \(proj_l\)",
    "vit_dwee_patch16_reg1_gap_256": r"differential attention \(lambda_q1\)",
    "vit_srelpos_small_patch16_224": r"relative positions \(rel_pos\)",
}


@pytest.mark.slow
@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("name", UNSUPPORTED_TIMM)
def test_unsupported_timm_models_are_rejected_by_their_part(name: str, folder: bool, tmp_path: Path) -> None:
    timm = import_timm()
    model = timm.create_model(name, depth=1)
    message = UNSUPPORTED_TIMM[name]
    if folder:
        timm.models.save_for_hf(model, tmp_path / "m")
        with pytest.raises(BadCheckpoint, match=rf"a timm model \({name}\) with unsupported .*{message}"):
            vitreous.load(tmp_path / "m")
    else:
        torch.save(model.state_dict(), tmp_path / "m.pth")
        with pytest.raises(BadCheckpoint, match=f"a timm model with unsupported .*{message}"):
            vitreous.load(tmp_path / "m.pth")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"final_norm": False}, "no norm after the last block"),
        ({"pos_embed": "none"}, r"positions .*\(pos_embed\)"),
        ({"proj_bias": False}, "no attention output bias"),
        ({"scale_attn_norm": True}, r"a norm on the attention output \(attn.norm\)"),
        ({"scale_mlp_norm": True}, r"a norm inside the MLP \(mlp.norm\)"),
        ({"norm_layer": "rmsnorm"}, "norms without a bias, such as RMSNorm"),
        ({"embed_norm_layer": "layernorm"}, r"a norm on the patches \(patch_embed.norm\)"),
    ],
    ids=str,
)
def test_unsupported_timm_arguments_are_rejected_by_name(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    torch.save(timm_model(**given).state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path / "m.pth")


def test_perception_encoder_is_rejected_by_name(tmp_path: Path) -> None:
    """It has the tensors of a CLIP tower, but rotates queries and keys."""
    timm = import_timm()
    model = timm.create_model("vit_pe_core_gigantic_patch14_448", depth=1, embed_dim=64, num_heads=2, img_size=28)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match="Perception Encoder"):
        vitreous.load(tmp_path / "m.pth")
    timm.models.save_for_hf(model, tmp_path / "m")
    with pytest.raises(BadCheckpoint, match="timm's vit_pe_core_gigantic_patch14_448, which is not supported"):
        vitreous.load(tmp_path / "m")


# transformers classes and the family name in the error for bare tensors.
UNSUPPORTED_TRANSFORMERS = {
    "ASTModel": "Audio Spectrogram Transformer",
    "BeitModel": "BEiT",
    "BeitForImageClassification": "BEiT",
    "BlipVisionModel": "the vision tower of BLIP",
    "Data2VecVisionModel": "Data2Vec",
    "DPTForDepthEstimation": "DPT",
    "EomtForUniversalSegmentation": "EoMT",
    "HieraModel": "Hiera",
    "IJepaModel": "I-JEPA",
    "InternVLVisionModel": "InternVL",
    "TimesformerModel": "TimeSformer",
    "VideoMAEModel": "VideoMAE",
    "VideoMAEForVideoClassification": "VideoMAE",
    "OwlViTVisionModel": "OWL-ViT",
    "SamVisionModel": "SAM",
    "SegformerModel": "SegFormer",
    "VitDetModel": "ViTDet",
    "VitPoseBackbone": "ViTPose",
    "VivitModel": "ViViT",
    "YolosModel": "YOLOS",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSUPPORTED_TRANSFORMERS)
def test_other_transformers_models_are_rejected_by_name(name: str, tmp_path: Path) -> None:
    kind = getattr(import_transformers(), name)
    usual = kind.config_class()
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 96}
    if "Segformer" in name:
        small = {"hidden_sizes": [8, 8, 8, 8]}
    elif "Hiera" in name:
        small = {"depths": [1, 1, 1, 1]}
    elif "DPT" in name:
        small |= {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "fusion_hidden_size": 16}
    config = kind.config_class(**{key: value for key, value in small.items() if hasattr(usual, key)})
    kind(config).save_pretrained(tmp_path)
    with pytest.raises(BadCheckpoint) as error:
        vitreous.load(tmp_path)
    expected = f"a transformers '{config.model_type}' model (model_type in config.json)"
    assert expected in str(error.value)
    (tmp_path / "model.safetensors").rename(tmp_path / "alone.safetensors")
    torch.save(kind(config).state_dict(), tmp_path / "alone.pth")  # version 5 has other names in memory
    for file in ("alone.safetensors", "alone.pth"):
        with pytest.raises(BadCheckpoint, match=f"unsupported model: .*{UNSUPPORTED_TRANSFORMERS[name]}.*would need"):
            vitreous.load(tmp_path / file)


@pytest.mark.parametrize(("model_type", "prefix"), [("timm_wrapper", "timm_model."), ("mine", "")])
def test_model_type_of_a_wrapper_does_not_hide_timm_tensors(model_type: str, prefix: str, tmp_path: Path) -> None:
    """transformers' TimmWrapper and custom classes write config.json next to tensors with timm's names."""
    model = import_timm().create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=3).eval()
    tensors = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    document = {"model_type": model_type, "architecture": "vit_tiny_patch16_224", "model_args": {"img_size": 32}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(vitreous.load(tmp_path)(images), model(images))


def test_known_model_type_with_unknown_names_is_an_unknown_format(tmp_path: Path) -> None:
    torch.save({"backbone.a.weight": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(BadCheckpoint, match="has an unknown format"):
        vitreous.load(tmp_path)


# timm architectures of other families, and their names in the error for bare tensors.
OTHER_FAMILIES = {
    "caformer_s18": "CAFormer",
    "coat_tiny": "CoaT",
    "coatnet_nano_rw_224": "CoAtNet",
    "convit_tiny": "ConViT",
    "convnext_atto": "ConvNeXt",
    "crossvit_9_240": "CrossViT",
    "davit_tiny": "DaViT",
    "efficientformer_l1": "EfficientFormer",
    "efficientnet_b0": "EfficientNet",
    "fastvit_t8": "FastViT",
    "focalnet_tiny_srf": "FocalNet",
    "gcvit_xxtiny": "GC ViT",
    "hiera_tiny_224": "Hiera",
    "levit_128s": "LeViT",
    "maxvit_nano_rw_256": "MaxViT",
    "mixer_s32_224": "MLP-Mixer",
    "mobilevit_xxs": "MobileViT",
    "mvitv2_tiny": "MViT",
    "naflexvit_base_patch16_siglip": "NaFlexVit",
    "nest_tiny": "NesT",
    "pit_ti_224": "PiT",
    "poolformer_s12": "PoolFormer",
    "pvt_v2_b0": "PVT",
    "resnet18": "a ResNet",
    "samvit_base_patch16": "SAM",
    "swinv2_cr_tiny_224": "swinv2_cr",
    "tiny_vit_5m_224": "TinyViT",
    "tnt_s_patch16_224": "TNT",
    "twins_svt_small": "Twins",
    "visformer_tiny": "batch norms",
    "vit_base_patch16_xp_224": "parallel layers",
    "vitamin_small_224": "ViTamin",
    "volo_d1_224": "VOLO",
    "xcit_nano_12_p8_224": "XCiT",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_other_families_of_timm_are_rejected_by_name(name: str, tmp_path: Path) -> None:
    timm = import_timm()
    with torch.device("meta"):
        model = timm.create_model(name)
    tensors = {key: torch.zeros(x.shape, dtype=x.dtype) for key, x in model.state_dict().items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    message = f"unsupported model: .*{OTHER_FAMILIES[name]}.*would need"
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name, "num_classes": 1000}))
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path)


def test_swin_of_a_segmenter_is_rejected_by_name(tmp_path: Path) -> None:
    transformers = import_transformers()
    small = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 1], "image_size": 32, "window_size": 4}
    swin = transformers.SwinConfig(**small, out_features=["stage1", "stage2"])
    transformers.SwinBackbone(swin).save_pretrained(tmp_path / "backbone")
    config = transformers.UperNetConfig(backbone_config=swin, hidden_size=8, use_auxiliary_head=False)
    transformers.UperNetForSemanticSegmentation(config).save_pretrained(tmp_path / "upernet")
    for folder in ("backbone", "upernet"):
        with pytest.raises(BadCheckpoint, match=r"Swin Transformer of a .*segmenter.*would need"):
            vitreous.load(tmp_path / folder)


# ---- Required overrides ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_missing_heads_error_shows_the_python_and_command_line_fix(tmp_path: Path) -> None:
    model = timm_model(embed_dim=96, num_heads=3)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint) as error:
        vitreous.load(tmp_path / "m.pth")
    assert str(error.value).endswith(
        'pass overrides={"num_heads": ...}, or convert the checkpoint once with '
        "`vitreous convert SRC DST --to vitreous --set num_heads=...`"
    )
    convert(tmp_path / "m.pth", tmp_path / "saved", to="vitreous", overrides={"num_heads": 3})
    check_close(vitreous.load(tmp_path / "saved"), model, SIZE)


def test_grey_deit_is_not_an_audio_model(tmp_path: Path) -> None:
    """Its tensors look like an Audio Spectrogram Transformer; config.json decides."""
    transformers = import_transformers()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    reference = transformers.DeiTModel(transformers.DeiTConfig(num_channels=1, image_size=64, patch_size=16, **sizes))
    reference.eval().save_pretrained(tmp_path)
    loaded, images = vitreous.load(tmp_path), torch.randn(2, 1, 64, 64)
    with torch.no_grad():
        features, expected = loaded.features(images), reference(images).last_hidden_state
    torch.testing.assert_close(features.patches, expected[:, 2:], rtol=0, atol=1e-5)
