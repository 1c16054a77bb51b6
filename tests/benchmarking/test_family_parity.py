"""Names and shapes of the largest models, which are too large for a comparison of outputs."""

import pytest
import torch

from benchmarks.family_parity import compare_names, config_for
from benchmarks.family_peers import Peer, Timm, Transformers
from optional_imports import import_timm, import_transformers
from vitreous.weights.formats.timm.eva import TimmEva


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "name", "more"),
    [(Timm(), "vit_7b_patch16_dinov3", 0), (Transformers(), "DINOv3ViTModel", 4096)],  # a mask token
    ids=["timm", "transformers"],
)
def test_all_tensors_of_the_largest_model_fit_in_both_directions(peer: Peer, name: str, more: int) -> None:
    import_timm()
    import_transformers()
    config = config_for(peer, "DINOv3-7B/16", name)
    assert compare_names(peer, config, name) == (6_716_030_976, 6_716_030_976 + more)


@pytest.mark.slow
def test_a_wrong_name_or_shape_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import_timm()
    name = "vit_small_patch16_dinov3_qkvb"
    config = config_for(Timm(), "DINOv3-S/16", name)
    original = TimmEva.packed
    for change in ({"norm.wait": torch.empty(1, device="meta")}, {"norm.weight": torch.empty(1, device="meta")}):
        monkeypatch.setattr(TimmEva, "packed", lambda *given, change=change: {**original(*given), **change})
        with pytest.raises(RuntimeError, match="norm"):
            compare_names(Timm(), config, name)
    with pytest.raises(SystemExit, match="timm has another"):
        compare_names(Timm(), config.override({"qkv_bias": False}), name)
