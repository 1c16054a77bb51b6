import torch
from vitreous.model.build import build
from vitreous.model.config import ViTConfig


def test_c():
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    m = build(
        ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=64, depth=2, num_heads=4, mlp_width=128, num_classes=5)
    ).eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(torch.compile(m, fullgraph=True, backend="aot_eager")(x), m(x))
    torch.export.export(m, (x,))
