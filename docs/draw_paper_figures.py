"""Draw the figures of docs/*/paper: `python docs/draw_paper_figures.py --dinov2 FILE --pets DIR [--only NAME ...]`.

FILE contains the weights of a DINOv2-S/14 with registers, in any format that `vitreous.load` reads. DIR contains
`images/` and `masks/` of Oxford-IIIT Pets, each with `train/BREED/` and `test/BREED/`. The small models are trained
here on the package's handwritten digits, which takes most of the time.
"""

import argparse
import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import vitreous
from vitreous.data.sources.named import FILES
from vitreous.explanation.attention_and_logit_lens import attention_distance, capture
from vitreous.explanation.pca_and_similarity import filter_components, filter_images, pca_colours, position_similarity
from vitreous.explanation.rollout_relevance_occlusion import rollout_map
from vitreous.model.config import ResNetConfig
from vitreous.model.cost import cost
from vitreous.model.inputs import normalise
from vitreous.model.masked import MaskedAutoencoder, MaskedPatchPrediction, colour_of, three_bits
from vitreous.model.options import Conditional, ResNetStem, Rotary2d, SinCos2d
from vitreous.model.patch import cut, uncut
from vitreous.model.presets import PRESETS
from vitreous.model.windows import Windows, separated_pairs

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent / "images" / "paper"
MOST_BYTES = 60_000
BEAGLE, PUG, SIAMESE = "test/beagle/beagle_*", "test/pug/pug_*", "test/Siamese/Siamese_*"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dinov2", type=Path, required=True)
parser.add_argument("--pets", type=Path, required=True)
parser.add_argument("--only", nargs="*", default=[])


# ---- Models and images -----------------------------------------------------------------------------------------------


@cache
def dinov2() -> vitreous.ViT:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file does not contain the number of heads
        return vitreous.load(args.dinov2).eval()


def pet_files(pattern: str) -> list[Path]:
    return sorted((args.pets / "images").glob(pattern + ".jpg"))


def pet(pattern: str, size: int = 224, number: int = 0) -> tuple[Tensor, np.ndarray]:
    """Return an image as the input of DINOv2 and as pixels."""
    image = Image.open(pet_files(pattern)[number]).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    unit = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255
    return normalise(unit, dinov2().config.preprocessing), pixels


@torch.no_grad()
def attention_from(images: Tensor, layer: int, query: int) -> Tensor:
    """Return the attention of one token to all patches in each head: [heads, rows, columns]."""
    model = dinov2()
    weights = model.attention(images, [layer])[0][0, :, query]
    return weights[:, model.prefix.length :].reshape(-1, 16, 16)


def patch_token(row: int, column: int) -> int:
    return dinov2().prefix.length + 16 * row + column


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, and test images and labels, at 16 x 16 pixels with values in [-1, 1]."""
    arrays = np.load(FILES / "digits.npz")
    images = torch.from_numpy(arrays["images"]).float().reshape(-1, 1, 8, 8)
    images = F.interpolate(images / images.max() * 2 - 1, size=16, mode="bilinear").expand(-1, 3, -1, -1)
    labels = torch.from_numpy(arrays["labels"]).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:-400], order[-400:]
    return images[train], labels[train], images[test], labels[test]


def small_vit(**overrides: object) -> nn.Module:
    """Return a ViT with 16 tokens of width 64 for the digits."""
    shape = {"patch_size": (4, 4), "width": 64, "num_heads": 4, "mlp_width": 128, "depth": 4}
    return vitreous.create("ViT-Lite-6/4", image_size=16, num_classes=10, overrides=shape | overrides)


def small_hybrid() -> nn.Module:
    return small_vit(stem=ResNetStem(stages=(1,), width=32), patch_size=(1, 1), depth=3)


def small_cnn() -> nn.Module:
    return vitreous.build(ResNetConfig(image_size=(16, 16), stages=(1, 1), width=32, num_classes=10))


def trained(
    model: nn.Module, count: int, steps: int = 300, loss: Callable[..., Tensor] | None = None, seed: int = 0
) -> nn.Module:
    """Train a model on the first `count` digits, shifted by up to one pixel."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = (part[:count] for part in digits()[:2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.2)
    model.train()
    for _ in range(steps):
        index = torch.randint(count, (64,), generator=generator)
        shift = tuple(torch.randint(-1, 2, (2,), generator=generator).tolist())
        batch = images[index].roll(shift, dims=(2, 3))
        value = F.cross_entropy(model(batch), labels[index]) if loss is None else loss(model, batch)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    _, _, images, labels = digits()
    return (model(images).argmax(1) == labels).float().mean().item()


# ---- Drawing ---------------------------------------------------------------------------------------------------------


def save(name: str, figure: plt.Figure | np.ndarray, width: int = 1200) -> None:
    """Write a WebP file of at most MOST_BYTES."""
    if isinstance(figure, np.ndarray):
        image = Image.fromarray(figure)
    else:
        memory = io.BytesIO()
        figure.savefig(memory, dpi=130, bbox_inches="tight", facecolor="white")
        plt.close(figure)
        image = Image.open(memory).convert("RGB")
    if image.width > width:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    for quality in (90, 80, 70, 60, 50, 40):
        memory = io.BytesIO()
        image.save(memory, "WEBP", quality=quality, method=6)
        if memory.tell() < MOST_BYTES:
            break
    else:
        raise ValueError(f"{name} has {memory.tell()} bytes, more than {MOST_BYTES}")
    (FOLDER / f"{name}.webp").write_bytes(memory.getvalue())
    print(f"{name}.webp: {memory.tell()} bytes, {image.width} x {image.height}", flush=True)


def row(images: list[np.ndarray], titles: list[str], columns: int = 0, **options: object) -> plt.Figure:
    """Draw images side by side."""
    columns = columns or len(images)
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.1 * columns, 2.3 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, image, title in zip(axes.flat, images, titles, strict=False):
        axis.imshow(image, **options)
        axis.set_title(title, fontsize=10)
    figure.tight_layout(pad=0.4)
    return figure


def overlay(pixels: np.ndarray, values: Tensor, cell: tuple[int, int] | None = None) -> np.ndarray:
    """Draw a map on the grid of patches over a grey image. `cell` marks the query patch."""
    heat = values.float() / values.max().clamp_min(1e-9)
    heat = F.interpolate(heat[None, None], size=pixels.shape[:2], mode="nearest")[0, 0].numpy()
    grey = pixels.mean(axis=2, keepdims=True).repeat(3, axis=2) / 255
    colours = plt.get_cmap("inferno")(heat)[..., :3]
    mixed = 0.35 * grey + 0.65 * colours
    if cell is not None:
        side = pixels.shape[0] // values.shape[0]
        top, left = cell[0] * side, cell[1] * side
        mixed[top : top + side, left : left + side] = (0, 1, 1)
    return (mixed * 255).astype(np.uint8)


def gridded(pixels: np.ndarray, patch: int) -> np.ndarray:
    lines = pixels.copy()
    lines[::patch], lines[:, ::patch] = 255, 255
    return lines


# ---- Section 1: from local to global -------------------------------------------------------------------------------


def locality() -> None:
    """Attention of one patch in the first, a middle and the last layer: the mean over heads."""
    images, pixels = pet(BEAGLE)
    query = (6, 8)
    maps = [attention_from(images, layer, patch_token(*query)).mean(dim=0) for layer in (0, 3, 7, 11)]
    drawn = [overlay(pixels, values.clamp(max=values.flatten().quantile(0.98)), query) for values in maps]
    save("locality", row([pixels, *drawn], ["image", "layer 1", "layer 4", "layer 8", "layer 12"]))


# ---- Section 3.1: equations 1 to 4 -----------------------------------------------------------------------------------


@torch.no_grad()
def patches() -> None:
    """Patches of an image, and what their projections keep of it: x_p E, mapped back by the pseudo-inverse of E."""
    images, pixels = pet(BEAGLE)
    model = dinov2()
    weight, bias = model.patches.projection.weight.flatten(1), model.patches.projection.bias
    flat = cut(images, (14, 14))
    tokens = flat @ weight.T + bias
    back = (tokens - bias) @ torch.linalg.pinv(weight).T
    kept = uncut(back, (14, 14), (16, 16))[0]
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in (model.config.preprocessing.mean, model.config.preprocessing.std)
    )
    rebuilt = ((kept * std + mean).clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
    single = pixels[6 * 14 : 7 * 14, 8 * 14 : 9 * 14].repeat(16, axis=0).repeat(16, axis=1)
    share = 1 - ((flat - back) ** 2).sum() / (flat**2).sum()
    drawn = [pixels, gridded(pixels, 14), single, rebuilt]
    save("patches", row(drawn, ["image", "16 x 16 patches", "row 7, column 9", f"from $x_pE$ ({share:.1%})"]))


def positions() -> None:
    """Figure 7, centre: cosine similarity of position embeddings, for every fourth row and column."""
    grid = dinov2().config.grid
    similarity = position_similarity(dinov2()).values
    assert similarity is not None
    picked = range(2, grid[0], 8)
    figure, axes = plt.subplots(len(picked), len(picked), figsize=(6, 6))
    for y, line in zip(picked, axes, strict=True):
        for x, axis in zip(picked, line, strict=True):
            axis.imshow(similarity[y, x], vmin=-1, vmax=1, cmap="viridis")
            axis.set_xticks([])
            axis.set_yticks([])
    figure.supxlabel("column of the patch")
    figure.supylabel("row of the patch")
    save("positions", figure, width=760)


def heads() -> None:
    """Attention of one patch in each head of two layers."""
    images, pixels = pet(BEAGLE)
    query, drawn, titles = (6, 8), [], []
    for layer in (1, 9):
        maps = attention_from(images, layer, patch_token(*query))
        drawn += [overlay(pixels, values.clamp(max=values.flatten().quantile(0.99)), query) for values in maps]
        titles += [f"layer {layer + 1}, head {head + 1}" for head in range(6)]
    save("heads", row(drawn, titles, columns=6))


@torch.no_grad()
def residual_stream() -> None:
    """Length of the tokens, and of what attention and MLP add to them, in each layer."""
    images, _ = pet(BEAGLE)
    model = dinov2()
    tokens, layout = model.embed(*model.patchify(images))
    terms = model.position.attend(layout, images.device)
    lengths: dict[str, list[float]] = {"tokens before the layer": [], "added by attention": [], "added by the MLP": []}
    for block in model.encoder.blocks:
        attended = block.attention_scale(block.attention(block.attention_norm(tokens), terms))
        after = block(tokens, terms)
        for name, value in zip(lengths, (tokens, attended, after - tokens - attended), strict=True):
            lengths[name].append(value.norm(dim=-1).mean().item())
        tokens = after
    figure, axis = plt.subplots(figsize=(7, 3.2))
    for name, values in lengths.items():
        axis.plot(range(1, 13), values, marker="o", label=name)
    axis.set(xlabel="layer", ylabel="mean length of a token", xticks=range(1, 13))
    axis.legend(frameon=False)
    save("residual-stream", figure, width=900)


@torch.no_grad()
def nearest() -> None:
    """The class token after the final norm as a feature of the image: nearest training images of two queries."""
    files = [
        path
        for breed in sorted((args.pets / "images" / "train").iterdir())
        for path in sorted(breed.glob("*.jpg"))[:12]
    ]
    queries = [pet_files(BEAGLE)[3], pet_files(SIAMESE)[3]]
    features = F.normalize(torch.cat([class_token(path) for path in [*queries, *files]]), dim=1)
    drawn, titles = [], []
    for number, query in enumerate(queries):
        drawn.append(np.asarray(Image.open(query).convert("RGB")))
        titles.append("query: " + query.parent.name)
        best = (features[len(queries) :] @ features[number]).topk(5)
        drawn += [np.asarray(Image.open(files[i]).convert("RGB")) for i in best.indices]
        titles += [
            f"{files[i].parent.name.replace('_', ' ')} {value:.2f}"
            for i, value in zip(best.indices, best.values, strict=True)
        ]
    save("nearest", row(drawn, titles, columns=6), width=1000)


@cache
def class_token(path: Path, size: int = 112) -> Tensor:
    image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    unit = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        return dinov2().pooled(normalise(unit, dinov2().config.preprocessing))


# ---- Section 3.2: another resolution ---------------------------------------------------------------------------------


@torch.no_grad()
def resolutions() -> None:
    """Principal components of the patch features at three resolutions, with resampled position embeddings."""
    drawn, titles = [pet(BEAGLE)[1]], ["image"]
    for size in (112, 224, 448):
        images, _ = pet(BEAGLE, size)
        features = dinov2().features(images)
        colours = pca_colours(features.patches[0], features.grid).numpy()
        drawn.append((colours * 255).astype(np.uint8))
        titles.append(f"{size} pixels, {features.grid[0]} x {features.grid[1]}")
    save("resolutions", row(drawn, titles))


# ---- Section 4.1 and appendix D.5: cost ------------------------------------------------------------------------------


def costs() -> None:
    """Parameters and operations of presets, and operations at several resolutions."""
    names = [f"ViT-{size}" for size in ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14")]
    names += ["R50+ViT-B/16", "BiT-R50x1"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    for name in names:
        found = cost(PRESETS[name])
        left.scatter(found.flops / 1e9, found.parameters / 1e6, color="tab:orange" if "R50" in name else "tab:blue")
        left.annotate(
            name, (found.flops / 1e9, found.parameters / 1e6), fontsize=7, xytext=(3, 3), textcoords="offset points"
        )
    left.set(xscale="log", yscale="log", xlabel="GFLOPs at 224 pixels", ylabel="million parameters")
    sizes = (64, 128, 224, 288, 384, 448, 512)
    for name in ("ViT-B/32", "ViT-B/16", "BiT-R50x1"):
        flops = [cost(replace(PRESETS[name], image_size=(size, size))).flops / 1e9 for size in sizes]
        right.plot(sizes, flops, marker="o", label=name)
    right.set(xscale="log", yscale="log", xlabel="image size", ylabel="GFLOPs", xticks=sizes, xticklabels=sizes)
    right.minorticks_off()
    right.legend(frameon=False)
    figure.tight_layout()
    save("costs", figure, width=1100)


# ---- Sections 4.3 and 3.1 (hybrid): the amount of data ---------------------------------------------------------------


def amount_of_data() -> None:
    """Accuracy on the digits by number of training images."""
    counts = (25, 100, 400, 1397)
    figure, axis = plt.subplots(figsize=(7, 3.6))
    for name, make in {"ViT": small_vit, "hybrid": small_hybrid, "CNN": small_cnn}.items():
        torch.manual_seed(0)
        found = [accuracy(trained(make(), count, 200)) for count in counts]
        print(name, counts, np.round(found, 3), flush=True)
        size = sum(p.numel() for p in make().parameters())
        axis.plot(counts, found, marker="o", label=f"{name}, {size:,} parameters")
    axis.set(xscale="log", xlabel="training images", ylabel="accuracy on 400 test images")
    axis.set(xticks=counts, xticklabels=counts)
    axis.minorticks_off()
    axis.legend(frameon=False)
    save("amount-of-data", figure, width=900)


def receptive_field() -> None:
    """Gradient of a central feature with respect to the pixels, after one stage of a CNN and one layer of a ViT."""
    torch.manual_seed(0)
    cnn, vit = trained(small_cnn(), 1397, 200), trained(small_vit(), 1397, 200)
    fields = []
    for feature in (
        lambda images: cnn.stages[0](F.max_pool2d(F.pad(cnn.root(images), [1] * 4), 3, 2))[:, :, 2, 2],
        lambda images: vit.intermediate(images, [0], norm=False)[0].patches[:, 2 * 4 + 2],
    ):
        images = digits()[2][:64].clone().requires_grad_()
        gradient = torch.autograd.grad(feature(images).square().sum(), images)[0]
        fields.append(gradient.abs().mean(dim=(0, 1)).sqrt().numpy())
    drawn = [field / field.max() for field in fields]
    save(
        "receptive-field",
        row(drawn, ["CNN, first stage", "ViT, first layer"], cmap="inferno", vmin=0, vmax=1),
        width=500,
    )


# ---- Section 4.5: inspecting -----------------------------------------------------------------------------------------


def embedding_filters() -> None:
    """Figure 7, left: the first principal components of the filters of E."""
    images = filter_images(filter_components(dinov2(), 28).patterns)
    save("filters", row(list(images), [""] * 28, columns=14, interpolation="nearest"), width=1000)


def distance() -> None:
    """Figure 7, right: mean attention distance of each head in each layer, over eight images."""
    chosen = [
        pet(f"test/{breed}/*")[0]
        for breed in ("beagle", "pug", "Siamese", "boxer", "Bengal", "samoyed", "Persian", "shiba_inu")
    ]
    measured = attention_distance(capture(dinov2(), torch.cat(chosen)))
    figure, axis = plt.subplots(figsize=(7, 3.4))
    for head, values in enumerate(measured.T):
        axis.scatter(range(1, 13), values, label=f"head {head + 1}", s=22)
    axis.set(xlabel="layer", ylabel="mean attention distance (pixels)", xticks=range(1, 13), ylim=(0, None))
    axis.legend(frameon=False, fontsize=8, ncols=2)
    save("distance", figure, width=900)


def rollout() -> None:
    """Figure 6: attention rollout, beside the attention of the class token in the last layer."""
    drawn, titles = [], []
    for pattern in (BEAGLE, PUG, SIAMESE):
        images, pixels = pet(pattern)
        run = capture(dinov2(), images)
        last = attention_from(images, 11, 0).mean(dim=0)
        spread = rollout_map(run)[0]
        drawn += [pixels, overlay(pixels, last.clamp(max=last.flatten().quantile(0.98)))]
        drawn.append(
            overlay(pixels, (spread - spread.min()).clamp(max=float((spread - spread.min()).flatten().quantile(0.98))))
        )
        titles += ["image", "last layer", "rollout"]
    save("rollout", row(drawn, titles, columns=9), width=1400)


# ---- Section 4.6 and MAE ---------------------------------------------------------------------------------------------


@torch.no_grad()
def masked_patches() -> None:
    """Corruption and target of masked patch prediction."""
    _, pixels = pet(BEAGLE)
    unit = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255
    generator = torch.Generator().manual_seed(1)
    flat = cut(unit, (14, 14))
    noise = torch.rand(1, 3, 256, generator=generator)
    method = MaskedPatchPrediction(
        vitreous.create(
            "ViT-Ti/16", image_size=224, overrides={"patch_size": (14, 14), "depth": 1, "width": 588, "num_heads": 3}
        )
    )
    method.mask.zero_().add_(0.5)
    corrupted, hidden = method.corrupt(flat, noise)
    means = flat.reshape(256, 3, 196).mean(-1)[..., None, None]
    target = colour_of(three_bits(means).flatten(), 3)[:, :, None].expand(-1, -1, 196).reshape(1, 256, 588)
    target = torch.where(hidden[..., None], target, torch.ones_like(target))
    drawn = [(uncut(part, (14, 14), (16, 16))[0].permute(1, 2, 0) * 255).byte().numpy() for part in (corrupted, target)]
    save("masked-patches", row([pixels, *drawn], ["image", "corrupted", "target: 3-bit mean colour"]), width=900)


def autoencoder() -> None:
    """MAE, trained on the digits: image, visible quarter, reconstruction."""
    torch.manual_seed(0)
    method = MaskedAutoencoder(small_vit(patch_size=(2, 2), num_classes=0), width=64, depth=2, num_heads=4)
    trained(method, 1397, 600, lambda module, batch: module(batch, torch.rand(len(batch), 64)).losses.mean())
    images, noise = digits()[2][:6], torch.rand(6, 64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        filled = method(images, noise)
    print("MAE loss", filled.losses.mean().item(), flush=True)
    flat, hidden = cut(images, (2, 2)), filled.hidden[..., None]
    rows = [
        images,
        uncut(flat.masked_fill(hidden, 0), (2, 2), (8, 8)),
        uncut(torch.where(hidden, filled.patches, flat), (2, 2), (8, 8)),
    ]
    drawn = [((part[i, 0].clamp(-1, 1) + 1) / 2).numpy() for part in rows for i in range(6)]
    titles = ["image"] * 6 + ["visible"] * 6 + ["predicted"] * 6
    save("autoencoder", row(drawn, titles, columns=6, cmap="gray", vmin=0, vmax=1), width=900)


# ---- Appendix D.4 and descendants ------------------------------------------------------------------------------------


@torch.no_grad()
def without_positions() -> None:
    """Principal components of the patch features with positions, without them, and with shuffled positions."""
    images, pixels = pet(BEAGLE)
    table = dinov2().position.table
    learned, order = table.clone(), torch.randperm(table[..., 0].numel(), generator=torch.Generator().manual_seed(0))
    drawn, titles = [pixels], ["image"]
    for title, changed in {
        "positions": learned,
        "positions set to zero": torch.zeros_like(learned),
        "positions shuffled": learned.flatten(0, 1)[order].reshape(learned.shape),
    }.items():
        table.copy_(changed)
        features = dinov2().features(images)
        drawn.append((pca_colours(features.patches[0], features.grid).numpy() * 255).astype(np.uint8))
        titles.append(title)
    table.copy_(learned)
    save("without-positions", row(drawn, titles))


def distillation() -> None:
    """Accuracy on the digits of a small ViT with few labels, with and without a convolutional teacher."""
    torch.manual_seed(0)
    teacher = trained(small_cnn(), 1397, 300)
    images, labels = digits()[:2]
    counts, table = (25, 50, 100, 200, 400), {"labels only": [], "labels and teacher": []}

    class TwoTokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = small_vit(distillation_token=True)

        def forward(self, batch: Tensor) -> Tensor:
            return self.vit(batch)

    for count in counts:

        def loss(module: nn.Module, batch: Tensor, count: int = count) -> Tensor:
            vit, some = module.vit, torch.randint(count, (32,))
            by_label, _ = vit.classify_distilled(vit.features(images[some]))
            _, by_teacher = vit.classify_distilled(vit.features(batch))
            with torch.no_grad():
                hard = teacher(batch).argmax(1)
            return (F.cross_entropy(by_label, labels[some]) + F.cross_entropy(by_teacher, hard)) / 2

        torch.manual_seed(1)
        table["labels only"].append(accuracy(trained(small_vit(), count)))
        torch.manual_seed(1)
        table["labels and teacher"].append(accuracy(trained(TwoTokens(), 1397, loss=loss)))
    figure, axis = plt.subplots(figsize=(7, 3.2))
    for name, values in table.items():
        print(name, np.round(values, 3), flush=True)
        axis.plot(counts, values, marker="o", label=name)
    axis.axhline(accuracy(teacher), color="grey", linestyle="--", label="teacher (CNN)")
    axis.set(
        xscale="log", xlabel="labelled images", ylabel="accuracy on 400 test images", xticks=counts, xticklabels=counts
    )
    axis.minorticks_off()
    axis.legend(frameon=False)
    save("distillation", figure, width=900)


@torch.no_grad()
def components() -> None:
    """Principal components of DINOv2's patch features, for each image by itself."""
    pairs = [pet(pattern) for pattern in (BEAGLE, PUG, "test/boxer/boxer_*", SIAMESE)]
    features = [dinov2().features(images) for images, _ in pairs]
    colours = [pca_colours(part.patches[0], part.grid).numpy() for part in features]
    drawn = [pixels for _, pixels in pairs] + [(part * 255).astype(np.uint8) for part in colours]
    save("components", row(drawn, [""] * 8, columns=4), width=900)


def registers() -> None:
    """Attention of the class token and of the four registers in the last layer."""
    images, pixels = pet(BEAGLE)
    maps = [attention_from(images, 11, token).mean(dim=0) for token in range(5)]
    drawn = [overlay(pixels, values.clamp(max=values.flatten().quantile(0.98))) for values in maps]
    save("registers", row([pixels, *drawn], ["image", "class token", *(f"register {i}" for i in range(1, 5))]))


def rotary() -> None:
    """Similarity of a centre position to all others: learned table of DINOv2, sin-cos, rotary."""
    made = {"learned (DINOv2-S)": dinov2()}
    for name, position in {"sin-cos": SinCos2d(), "rotary, 16 x 16": Rotary2d()}.items():
        made[name] = vitreous.create("ViT-S/16", overrides={"position": position, "depth": 1})
    drawn, titles = [], []
    for name, model in made.items():
        values = position_similarity(model, (16, 16)).values
        assert values is not None
        drawn.append(values[8, 8].numpy())
        titles.append(name)
    wide = position_similarity(made["rotary, 16 x 16"], (32, 32)).values
    assert wide is not None
    save(
        "rotary",
        row([*drawn, wide[16, 16].numpy()], [*titles, "rotary, 32 x 32"], vmin=-1, vmax=1, cmap="viridis"),
        width=1000,
    )


def padding() -> None:
    """What CPVT's convolution adds to the tokens of a blank image, by length, in a model trained on the digits."""
    torch.manual_seed(0)
    model = trained(small_vit(position=Conditional(), patch_size=(2, 2)), 1397, 200).requires_grad_(False)
    drawn, titles = [], []
    for name, images in {"digit": digits()[2][:1], "blank image": torch.full((1, 3, 16, 16), -1.0)}.items():
        tokens, layout = model.embed(*model.patchify(images))
        after = model.encoder.blocks[0](tokens, model.position.attend(layout, tokens.device))
        added = model.position.between(0, after, layout) - after
        drawn += [images[0, 0].numpy(), added[0, 1:].norm(dim=-1).reshape(8, 8).numpy()]
        titles += [name, "length of the added vector"]
    save("padding", row(drawn, titles, cmap="viridis"), width=900)


def windows() -> None:
    """Swin's windows on an 8 x 8 grid with and without a shift, and the masks of the four shifted windows."""
    grid, size = (8, 8), (4, 4)
    pictures, titles = [], []
    for shift in ((0, 0), (2, 2)):
        arranged = Windows(grid, size, shift)
        owner = torch.zeros(64)
        for number, tokens in enumerate(arranged.token_indices()):
            owner[tokens] = number
        pictures.append(owner.reshape(grid).numpy() / 3)
        titles.append("windows" if shift == (0, 0) else "shifted windows")
    separated = separated_pairs(Windows(grid, size, (2, 2)), torch.device("cpu"))
    assert separated is not None
    pictures += [mask.float().numpy() for mask in separated]
    save(
        "windows",
        row(pictures, [*titles, *(f"mask of window {i}" for i in range(1, 5))], vmin=0, vmax=1, cmap="viridis"),
        width=1100,
    )


@torch.no_grad()
def segmentation() -> None:
    """A linear decoder on the patch features, fitted to 74 masks by ridge regression: pet or background."""

    def features_and_masks(split: str, each: int) -> tuple[list[np.ndarray], Tensor, Tensor]:
        pixels, features, masks = [], [], []
        for breed in sorted((args.pets / "images" / split).iterdir()):
            for number in range(each):
                images, shown = pet(f"{split}/{breed.name}/*", 224, number)
                path = (
                    args.pets / "masks" / pet_files(f"{split}/{breed.name}/*")[number].relative_to(args.pets / "images")
                )
                mask = Image.open(path.with_suffix(".png")).resize((224, 224), Image.Resampling.NEAREST)
                pixels.append(shown)
                features.append(dinov2().features(images).patches)
                masks.append(torch.from_numpy(np.asarray(mask) == 1))
        return pixels, torch.cat(features), torch.stack(masks)

    _, train, masks = features_and_masks("train", 2)
    share = F.avg_pool2d(masks.float()[:, None], 14).flatten(1)
    x = torch.cat([train, torch.ones(*train.shape[:2], 1)], dim=-1).flatten(0, 1)
    weights = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ (2 * share.flatten() - 1))
    pixels, test, masks = features_and_masks("test", 1)
    scores = (torch.cat([test, torch.ones(*test.shape[:2], 1)], dim=-1) @ weights).reshape(-1, 1, 16, 16)
    found = F.interpolate(scores, size=224, mode="bilinear")[:, 0] > 0
    iou = [
        ((found == kind) & (masks == kind)).sum() / ((found == kind) | (masks == kind)).sum() for kind in (True, False)
    ]
    print(f"mean IoU {float(sum(iou)) / 2:.3f} on {len(masks)} test images, {len(train)} training images", flush=True)
    drawn = []
    for i in (3, 13, 29, 34):
        shown = pixels[i] / 255
        shown[~found[i].numpy()] *= 0.25
        drawn += [pixels[i], (shown * 255).astype(np.uint8)]
    save("segmentation", row(drawn, ["image", "pet"] * 4), width=1200)


FIGURES = [
    locality, patches, positions, heads, residual_stream, nearest, resolutions, costs, amount_of_data,
    receptive_field, embedding_filters, distance, rollout, masked_patches, autoencoder, without_positions,
    distillation, components, registers, rotary, padding, windows, segmentation,
]  # fmt: skip

if __name__ == "__main__":
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in FIGURES:
        if not args.only or draw.__name__ in args.only:
            draw()
