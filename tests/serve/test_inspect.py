"""Numbers as the page gets them, from a real server, against what the model and vitreous.explain say of the picture."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch import Tensor

import vitreous
from live_server import Live, Reply, in_thread
from pictures import encoded, smooth
from planted import DECOY, KINDS, PLACE, SHOWN, of_kind, planted
from vitreous.data.decode import fit
from vitreous.explain.distance import attention_distance
from vitreous.explain.faithful import as_patches, faithfulness, random_faithfulness
from vitreous.explain.filters import as_pictures, filter_components
from vitreous.explain.occlusion import occlusion
from vitreous.explain.position import position_similarity
from vitreous.explain.relevance import relevance
from vitreous.explain.rollout import rollout
from vitreous.explain.seen import seen_part
from vitreous.explain.study import class_index
from vitreous.explain.tokens import pca_colours
from vitreous.infer.predictor import Predictor
from vitreous.model.build import build, build_vit
from vitreous.model.checks import BadValue
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import Conditional, NoPosition, Preprocessing, RelativeBias, Rotary2d, SinCos2d
from vitreous.model.segmenter import SegmenterConfig, build_segmenter
from vitreous.model.vit import ViT
from vitreous.serve.errors import install
from vitreous.serve.inspect import router
from vitreous.serve.models import Served, serving
from vitreous.serve.settings import Settings

LABELS = ("ant", "bee", "cat", "dog", "emu")
SMALL = ViTConfig(
    image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=5, labels=LABELS,
    preprocessing=Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)),
)  # fmt: skip
PLAIN = Preprocessing(crop_fraction=1.0)
POSITIONS = {"relative": RelativeBias(), "rotary": Rotary2d(), "sincos": SinCos2d(), "conditional": Conditional()}


def name(kind: str) -> str:
    return kind.replace(" ", "-").replace(",", "")


NAMES = [name(kind) for kind in KINDS]


@pytest.fixture(scope="module")
def models() -> dict[str, object]:
    torch.manual_seed(0)
    found: dict[str, object] = {name(kind): of_kind(SMALL, kind) for kind in KINDS}
    for block in found["class-token"].encoder.blocks:  # type: ignore[attr-defined]
        for part in (block.attention.q, block.attention.k, block.attention.v):
            part.weight.data *= 8  # attention that is far from even
    exact = dataclasses.replace(SMALL, preprocessing=PLAIN)
    found |= {f"planted-{name(kind)}": planted(exact, kind) for kind in KINDS}
    found |= {key: build_vit(dataclasses.replace(SMALL, position=position)) for key, position in POSITIONS.items()}
    found["bag"] = build_vit(dataclasses.replace(SMALL, position=NoPosition()))
    bare = dataclasses.replace(SMALL, num_classes=0, labels=(), registers=2)
    found["bare"] = build_vit(bare)
    found["grey"] = build_vit(dataclasses.replace(SMALL, channels=1, preprocessing=PLAIN))
    found["padded"] = build_vit(dataclasses.replace(SMALL, image_size=(20, 30), pad=True, preprocessing=PLAIN))
    found["masks"] = build_segmenter(SegmenterConfig(bare, num_classes=3, labels=("Background", "pet", "edge")))
    found["bit"] = build(ResNetConfig(image_size=(32, 32), stages=(1, 1), width=32, num_classes=4))
    found["large"] = build_vit(dataclasses.replace(SMALL, image_size=(512, 512), depth=1, width=16))
    return found


@pytest.fixture(scope="module")
def live(models: dict[str, object]) -> Iterator[Live]:
    served: list[Served] = [serving(model, id, id, "cpu") for id, model in models.items()]  # type: ignore[arg-type]
    with in_thread(served) as live:
        yield live


def picture(seed: int = 0, height: int = 60, width: int = 90) -> bytes:
    return encoded(smooth(height, width, seed))


def as_given(model: object, data: bytes) -> Tensor:
    """The picture as the model takes it."""
    config = model.config  # type: ignore[attr-defined]
    pixels = fit(data, config.image_size, config.preprocessing, config.channels)
    return normalise(pixels[None].float() / 255, config.preprocessing)


def send(live: Live, model: str, data: bytes | None = None) -> str:
    reply = live.ask("POST", f"/v1/images?model={model}", data or picture())
    assert reply.status == 200, reply
    return str(reply.json["id"])


def get(live: Live, model: str, what: str, data: bytes | None = None) -> Reply:
    id = send(live, model, data)
    return live.ask("GET", f"/v1/images/{id}/{what}{'&' if '?' in what else '?'}model={model}")


def array(reply: Reply, kind: str = "u1", skip: int = 0) -> np.ndarray:
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/octet-stream"
    shape = [int(side) for side in reply.headers["x-shape"].split(",")]
    return np.frombuffer(reply.body, kind, offset=skip).reshape(shape)


# ---- A picture arrives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [*NAMES, "bit", "grey"])
def test_a_picture_is_named_by_its_bytes_and_answered_as_the_predictor_does(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    reply = live.ask("POST", f"/v1/images?model={id}", picture())
    found = reply.json
    assert reply.headers["cache-control"] == "no-store"
    assert found["id"] == hashlib.sha256(picture()).hexdigest()[:32]
    assert found["model"] == id
    assert found["picture"] == {"width": 90, "height": 60}
    assert found["grid"] == ([0, 0] if id == "bit" else [3, 4])
    box = seen_part((60, 90), models[id].config.image_size, models[id].config.preprocessing)
    assert found["seen"] == {key: pytest.approx(value, abs=1e-3) for key, value in box._asdict().items()}
    [wanted] = Predictor(models[id], "cpu", top=5)(picture())
    assert [one["label"] for one in found["predictions"]] == [one.label for one in wanted.predictions]
    for ours, theirs in zip(found["predictions"], wanted.predictions, strict=True):
        assert ours["probability"] == pytest.approx(theirs.probability, rel=1e-4)
        assert ours["index"] == theirs.index
    assert found["segments"] is None


def test_a_form_is_the_same_picture(live: Live) -> None:
    data = picture()
    body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + data + b"\r\n--x--\r\n"
    reply = live.ask("POST", "/v1/images", body, "multipart/form-data; boundary=x")
    assert reply.json["id"] == hashlib.sha256(data).hexdigest()[:32]
    assert reply.json["model"] == "class-token"  # the first


def test_one_picture_for_several_models(live: Live) -> None:
    """It is sent once; every model can be asked about it."""
    id = send(live, "class-token", picture(1))
    found = live.ask("GET", f"/v1/images/{id}/lens?model=registers").json
    assert found == get(live, "registers", "lens", picture(1)).json


def test_what_the_grid_covers_beyond_the_picture_is_told(live: Live) -> None:
    """A padded picture: of 20 x 30 pixels the model sees all, and its 3 x 4 patches of 8 stand for 24 x 32."""
    data = picture(height=20, width=30)
    found = live.ask("POST", "/v1/images?model=padded", data).json
    assert found["grid"] == [3, 4]
    assert found["seen"] == {"left": 0, "top": 0, "width": 32, "height": 24}


# ---- Every token with every token ------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [*NAMES, *POSITIONS, "bag", "bare", "grey"])
def test_attention_is_the_models(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models[id]
    for layer, weights in enumerate(model.attention(as_given(model, picture()))):
        true = weights[0].detach().numpy()
        heads, t, _ = true.shape
        reply = get(live, id, f"attention/{layer}")
        scales = np.frombuffer(reply.body, "<f4", heads * t).reshape(heads, t)
        bytes = array(reply, skip=4 * heads * t)
        assert bytes.shape == (heads, t, t) == (4, model.config.tokens, model.config.tokens)
        largest = true.max(axis=-1)
        np.testing.assert_allclose(scales, largest, rtol=1e-4)
        decoded = bytes / 255 * scales[..., None]
        assert (np.abs(decoded - true) <= largest[..., None] * (0.5 / 255 + 1e-4)).all()
        assert (bytes.max(axis=-1) == 255).all()
        np.testing.assert_allclose(decoded.sum(axis=-1), 1, atol=t * 0.5 / 255)


@pytest.mark.parametrize("id", [*NAMES, "bare"])
def test_likeness_is_the_cosine(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models[id]
    for layer, features in enumerate(model.intermediate(as_given(model, picture()))):
        tokens = torch.cat([features.prefix, features.patches], dim=1)[0].detach()
        true = torch.nn.functional.cosine_similarity(tokens[:, None], tokens[None], dim=-1).numpy()
        bytes = array(get(live, id, f"similarity/{layer}"))
        assert np.abs(bytes / 127.5 - 1 - true).max() < 0.51 / 127.5
        assert (np.diag(bytes) == 255).all()


# ---- Maps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", NAMES)
def test_rollout_is_that_of_explain(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models[id]
    image = as_given(model, picture())
    shares = model.pool.weights(model.features(image)).mean(dim=1)[0].detach()
    if id == "distilled":
        shares[:2] = 0.5
    for query, how in (("", {}), ("?fusion=max&discard=0.4", {"fusion": "max", "discard": 0.4}), ("?layer=0", {})):
        layers = [0] if query == "?layer=0" else None
        expected = shares @ rollout(model, image, layers, **how)[0]  # type: ignore[arg-type]
        found = get(live, id, f"map/rollout{query}").json
        assert found["grid"] == [3, 4]
        assert found["target"] is None
        np.testing.assert_allclose(found["values"], expected[model.config.prefix :], rtol=1e-4)
        assert found["range"] == [min(found["values"]), max(found["values"])]


def bright() -> bytes:
    """As `planted.picture`, but to be sent: bright in the place that matters and in one that only looks so."""
    pixels = np.random.default_rng(0).integers(10, 60, (24, 32, 3)).astype(np.uint8)
    for row, column in (PLACE, DECOY):
        pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 180
    return encoded(pixels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["relevance", "occlusion"])
def test_the_peak_is_where_the_signal_was_planted(live: Live, kind: str, method: str) -> None:
    found = get(live, f"planted-{name(kind)}", f"map/{method}?target={LABELS[SHOWN]}", bright()).json
    assert found["target"] == {"index": SHOWN, "label": LABELS[SHOWN]}
    assert divmod(int(np.argmax(found["values"])), 4) == PLACE


@pytest.mark.parametrize("id", NAMES)
def test_maps_of_a_class_are_those_of_explain(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models[id]
    image = as_given(model, picture())
    likeliest = int(model(image).argmax())
    for query, target in (("", likeliest), ("?target=3", 3)):
        found = get(live, id, f"map/relevance{query}").json
        assert found["target"] == {"index": target, "label": LABELS[target]}
        expected = relevance(model, image, target)[0].flatten()
        np.testing.assert_allclose(found["values"], expected, rtol=1e-3, atol=1e-7)
        found = get(live, id, f"map/occlusion{query}").json
        expected = as_patches(occlusion(model, image, target), (8, 8)).flatten()
        np.testing.assert_allclose(found["values"], expected, rtol=1e-3, atol=1e-6)


def test_components_are_colours(live: Live, models) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models["registers"]
    features = model.intermediate(as_given(model, picture()))
    for layer in (0, 1):
        found = get(live, "registers", f"map/pca?layer={layer}").json
        expected = pca_colours(features[layer].patches[0].detach(), (3, 4)).flatten()
        np.testing.assert_allclose(found["rgb"], expected, atol=2e-3)
    assert get(live, "registers", "map/pca").json == found


@pytest.mark.parametrize("method", ["relevance", "rollout", "attention", "occlusion"])
def test_maps_are_put_to_the_test(live: Live, models, method: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models["planted-class-token"]
    id = "planted-class-token"
    values = torch.tensor(get(live, id, f"map/{method}?target=1", bright()).json["values"]).view(3, 4)
    found = get(live, id, f"faithfulness/{method}?target=1", bright()).json
    image = as_given(model, bright())
    expected, random = faithfulness(model, image, 1, values), random_faithfulness(model, image, 1)
    for kind in ("deletion", "insertion"):
        assert found[kind]["auc"] == pytest.approx(getattr(expected, kind), abs=1e-4)
        np.testing.assert_allclose(found[kind]["curve"], getattr(expected, f"{kind}_curve"), atol=1e-4)
        assert found["random"][kind] == pytest.approx(getattr(random, kind), abs=1e-4)
    assert len(found["shares"]) == len(found["deletion"]["curve"]) == 13


# ---- Answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", NAMES)
def test_the_last_layer_says_what_the_model_says(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    layers = get(live, id, "lens").json["layers"]
    assert [one["layer"] for one in layers] == [0, 1]
    shown = live.ask("POST", f"/v1/images?model={id}", picture()).json
    assert layers[-1]["predictions"] == shown["predictions"][:3]


def erase(live: Live, model: str, patches: list[int], classes: list[int], data: bytes | None = None) -> Reply:
    body = json.dumps({"patches": patches, "classes": classes}).encode()
    path = f"/v1/images/{send(live, model, data)}/masked?model={model}"
    return live.ask("POST", path, body, "application/json")


@pytest.mark.parametrize("id", NAMES)
def test_erased_patches(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models[id]
    image = as_given(model, picture())
    shown = live.ask("POST", f"/v1/images?model={id}", picture()).json["predictions"]
    none = erase(live, id, [], []).json
    assert [one["label"] for one in none["predictions"]] == [one["label"] for one in shown]
    for one, other in zip(none["predictions"], shown, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)
    assert none["probabilities"] == {}
    grey = image.mean(dim=(2, 3), keepdim=True)
    some = image.clone()
    some[:, :, 8:16, 16:24] = grey[..., 0:1, 0:1]
    for patches, expected in ((range(12), grey.expand_as(image)), ([6], some)):
        shares = model(expected)[0].softmax(-1).tolist()
        found = erase(live, id, list(patches), [4, 0]).json["probabilities"]
        assert found == {"4": pytest.approx(shares[4], rel=1e-4), "0": pytest.approx(shares[0], rel=1e-4)}


@pytest.mark.parametrize("id", NAMES)
def test_how_far_heads_look(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    found = get(live, id, "distance").json
    expected = attention_distance(models[id], as_given(models[id], picture()))
    np.testing.assert_allclose(found["pixels"], expected, rtol=1e-4)
    assert found["largest"] == pytest.approx(np.hypot(16, 24), rel=1e-5)


@pytest.mark.parametrize("id", [*NAMES, "bare", "padded"])
def test_the_tour_shows_what_is_there(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    model: ViT = models[id]
    config, image = model.config, as_given(model, picture())
    steps = get(live, id, "tour").json["steps"]
    assert [one["equation"] for one in steps] == [1, 1, 1, 1, 2, 2, 3, 4]
    t, d, channels = config.tokens, 32, 32 if id == "hybrid" else 3
    shapes = [[12, channels * config.patch_size[0] ** 2], [12, d], [t, d], [t, d], [4, t, t], [t, d], [t, d], [d]]
    assert [one["shape"] for one in steps] == shapes
    tokens, layout = model.embed(*model.patchify(image))
    (before, after), *_ = model.encoder.walk(tokens, layout, model.position)
    weights = model.attention(image, [0])[0]
    real = {3: before, 4: weights, 6: after, 7: model.pool(model.features(image))}
    for index, values in real.items():
        values = values[0].detach()
        assert steps[index]["sample"] == pytest.approx(values.flatten()[:6].tolist(), rel=1e-4, abs=1e-6)
        expected = {"mean": values.mean(), "std": values.std(correction=0), "min": values.min(), "max": values.max()}
        assert steps[index]["stats"] == {
            key: pytest.approx(float(value), rel=1e-3, abs=1e-5) for key, value in expected.items()
        }
    assert steps[2]["tokens"] == {
        "registers": ["class", "register 1", "register 2", "register 3", "register 4"],
        "distilled": ["class", "distillation"],
        "bare": ["class", "register 1", "register 2"],
        "average": [],
    }.get(id, steps[2]["tokens"])
    assert len(steps[2]["tokens"]) == config.prefix
    assert ("scores" in steps[7]) == (id != "bare")


# ---- Of a model alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["class-token", "sincos", "rotary", "relative", "masks", "registers"])
def test_places(live: Live, models, id: str) -> None:  # type: ignore[no-untyped-def]
    found = array(live.ask("GET", f"/v1/position?model={id}"))
    vit = models[id].encoder if id == "masks" else models[id]
    values = position_similarity(vit).values
    assert values is not None
    if id == "relative":
        values = values / values.abs().max()  # of what is added to attention the largest counts as 1
        assert found.min() in (0, 1) or found.max() == 255
    assert found.shape == (12, 12)
    assert np.abs(found / 127.5 - 1 - values.reshape(12, 12).detach().numpy()).max() < 0.51 / 127.5


@pytest.mark.parametrize("id", ["conditional", "bag"])
def test_no_places(live: Live, id: str) -> None:
    reply = live.ask("GET", f"/v1/position?model={id}")
    assert (reply.status, reply.code) == (404, "no_positions")


@pytest.mark.parametrize(("id", "side"), [("class-token", 8), ("grey", 8), ("hybrid", 7), ("masks", 8)])
def test_filters(live: Live, models, id: str, side: int) -> None:  # type: ignore[no-untyped-def]
    found = array(live.ask("GET", f"/v1/filters?model={id}"))
    assert found.shape == (28, side, side, 3)
    components = filter_components(models[id].encoder if id == "masks" else models[id])
    expected = as_pictures(components.patterns).permute(0, 2, 3, 1) * 255
    assert np.abs(found - expected.numpy()).max() <= 0.51


# ---- Other kinds of models -------------------------------------------------------------------------------------------


def test_a_segmenter_has_masks_and_its_encoder_attention(live: Live, models) -> None:  # type: ignore[no-untyped-def]
    model, data = models["masks"], picture(5)
    image = as_given(model, data)
    ids = model(image)[0].argmax(dim=0).numpy()
    mask = array(get(live, "masks", "mask", data))
    np.testing.assert_array_equal(mask, ids)
    shown = live.ask("POST", "/v1/images?model=masks", data).json
    assert shown["predictions"] is None
    assert sum(one["share"] for one in shown["segments"]) == pytest.approx(1, abs=1e-4)
    for one in shown["segments"]:
        assert one["share"] == pytest.approx((ids == one["index"]).mean(), abs=1e-5)
        assert one["label"] == model.config.labels[one["index"]]
        assert one["color"] == {"Background": "#000000", "pet": "#800000", "edge": "#008000"}[one["label"]]
    reply = get(live, "masks", "attention/1", data)
    expected = model.encoder.attention(image)[1][0].detach().numpy()
    decoded = array(reply, skip=4 * 4 * 15) / 255 * np.frombuffer(reply.body, "<f4", 4 * 15).reshape(4, 15, 1)
    np.testing.assert_allclose(decoded, expected, atol=expected.max() / 255)


@pytest.mark.parametrize(
    ("id", "what", "code"),
    [
        *(("bit", what, "no_attention") for what in ("attention/0", "similarity/0", "map/rollout", "map/relevance")),
        *(("bit", what, "no_attention") for what in ("lens", "distance", "tour", "faithfulness/occlusion")),
        *((id, what, "no_head") for id in ("bare", "masks") for what in ("lens", "map/relevance", "map/occlusion")),
        *((id, "faithfulness/rollout", "no_head") for id in ("bare", "masks")),
        *((id, "mask", "no_masks") for id in ("class-token", "bare", "bit")),
    ],
)
def test_what_a_model_cannot_tell(live: Live, id: str, what: str, code: str) -> None:
    reply = get(live, id, what)
    assert (reply.status, reply.code) == (409, code)


@pytest.mark.parametrize("id", ["bare", "masks", "bit"])
def test_only_a_classifier_can_be_asked_with_patches_erased(live: Live, id: str) -> None:
    reply = erase(live, id, [0], [])
    assert (reply.status, reply.code) == (409, "no_attention" if id == "bit" else "no_head")


def test_a_model_alone_without_attention(live: Live) -> None:
    for what in ("position", "filters"):
        reply = live.ask("GET", f"/v1/{what}?model=bit")
        assert (reply.status, reply.code) == (409, "no_attention")


def test_more_tokens_than_can_be_sent(live: Live) -> None:
    """4 heads x 4097 x 4097 bytes are more than 64 MiB; likeness, a quarter of that, is not."""
    for what in ("attention/0", "map/relevance", "faithfulness/relevance"):
        reply = get(live, "large", what)
        assert (reply.status, reply.code) == (413, "too_many_tokens")
        assert "4,097 tokens" in reply.json["error"]["message"]
    assert array(get(live, "large", "similarity/0")).shape == (4097, 4097)
    assert len(get(live, "large", "map/rollout").json["values"]) == 4096


# ---- What is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("0123456789abcdef0123456789abcdef/lens", 404, "unknown_image"),
        ("x/attention/0", 404, "unknown_image"),
        ("..%2f..%2fetc/lens", 404, "not_found"),
        ("ID/attention/2", 422, "bad_parameter"),
        ("ID/attention/-1", 422, "bad_parameter"),
        ("ID/attention/one", 422, "bad_parameter"),
        ("ID/similarity/99999999999999999999", 422, "bad_parameter"),
        ("ID/map/saliency", 422, "bad_parameter"),
        ("ID/map/rollout?fusion=sum", 422, "bad_parameter"),
        ("ID/map/rollout?discard=0.99", 422, "bad_parameter"),
        ("ID/map/rollout?discard=nan", 422, "bad_parameter"),
        ("ID/map/rollout?layer=7", 422, "bad_parameter"),
        ("ID/map/relevance?target=5", 422, "bad_parameter"),
        ("ID/map/relevance?target=be", 422, "bad_parameter"),
        ("ID/map/relevance?target=" + "9" * 5000, 422, "bad_parameter"),
        ("ID/map/relevance?target=" + "9" * 200, 422, "bad_parameter"),
        ("ID/faithfulness/pca", 422, "bad_parameter"),
        ("ID/faithfulness/relevance?target=%F0%9F%90%9D", 422, "bad_parameter"),
        ("ID/lens?model=nobody", 404, "unknown_model"),
        ("ID/nothing", 404, "not_found"),
    ],
)
def test_questions_that_cannot_be_answered(live: Live, path: str, status: int, code: str) -> None:
    reply = live.ask("GET", "/v1/images/" + path.replace("ID", send(live, "class-token")))
    assert (reply.status, reply.code) == (status, code)


def test_a_class_of_very_many_digits_is_no_class() -> None:
    """Python's own int() would refuse them, in an error that is not ours."""
    model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    with pytest.raises(BadValue, match="must be a number from 0 to 2"):
        class_index(model, "9" * 5000)


def test_a_near_miss_is_told_what_was_meant(live: Live) -> None:
    said = get(live, "class-token", "map/relevance?target=beee").json["error"]["message"]
    assert "'beee'" in said
    assert "'bee'" in said


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_json"),
        (b"[]", 422, "bad_parameter"),
        (b'{"patches": [12]}', 422, "bad_parameter"),
        (b'{"patches": [-1]}', 422, "bad_parameter"),
        (b'{"patches": ["x"]}', 422, "bad_parameter"),
        (b'{"patches": [1.5]}', 422, "bad_parameter"),
        (b'{"patches": [1e400]}', 422, "bad_parameter"),
        (b'{"classes": [5]}', 422, "bad_parameter"),
        (b'{"classes": 5}', 422, "bad_parameter"),
    ],
)
def test_erasing_what_is_not_there(live: Live, body: bytes, status: int, code: str) -> None:
    id = send(live, "class-token")
    reply = live.ask("POST", f"/v1/images/{id}/masked", body, "application/json")
    assert (reply.status, reply.code) == (status, code)


def test_a_picture_that_ends_early(live: Live) -> None:
    whole = encoded(np.random.default_rng(0).integers(0, 255, (50, 60, 3)).astype(np.uint8))
    reply = live.ask("POST", "/v1/images", whole[:2000])
    assert (reply.status, reply.code) == (422, "unreadable_image")


def test_a_model_whose_answers_are_not_numbers() -> None:
    """The whole server would never be ready."""
    model = build_vit(SMALL)
    model.norm.weight.data.fill_(float("nan"))
    app = FastAPI()
    install(app)
    app.include_router(router([serving(model, "broken", "broken", "cpu")], Settings()))
    with TestClient(app) as client:
        reply = client.post("/v1/images", content=picture(), headers={"Content-Type": "image/png"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "not_a_number")


# ---- Many at once ----------------------------------------------------------------------------------------------------


def test_a_picture_is_forgotten_when_many_others_have_come(live: Live) -> None:
    first = picture(100, 40, 40)
    id = send(live, "class-token", first)
    before = live.ask("GET", f"/v1/images/{id}/attention/1")
    for seed in range(101, 133):
        send(live, "class-token", picture(seed, 40, 40))
    reply = live.ask("GET", f"/v1/images/{id}/attention/1")
    assert (reply.status, reply.code) == (404, "unknown_image")
    assert send(live, "class-token", first) == id
    assert live.ask("GET", f"/v1/images/{id}/attention/1").body == before.body


def test_many_at_once_get_what_each_would_get_alone(live: Live, models: dict[str, object]) -> None:
    whats = ["attention/0", "attention/1", "similarity/1", "map/rollout", "map/relevance", "map/occlusion", "lens"]
    whats += ["distance", "tour", "map/pca", "faithfulness/relevance"]
    ids = ["class-token", "average", "attention-pooling"]
    data = {seed: picture(200 + seed) for seed in range(3)}
    questions = [(id, what, seed) for id in ids for what in whats for seed in data]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: get(live, one[0], one[1], data[one[2]]), questions))
    with in_thread([serving(models[id], id, id, "cpu") for id in ids]) as alone:  # type: ignore[arg-type]
        for (id, what, seed), reply in zip(questions, together, strict=True):
            assert reply.status == 200, reply
            assert get(alone, id, what, data[seed]).body == reply.body, (id, what)
