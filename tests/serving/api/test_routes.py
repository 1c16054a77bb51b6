"""The API routes, compared with the predictors."""

import base64
import dataclasses
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from images import encoded, smooth
from live_server import Live, Reply, in_thread
from vitreous.inference.predictor import MultiLabelPredictor, Predictor, RegressPredictor
from vitreous.model.build import build, build_segmenter, build_vit
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.familiarity import Familiarity
from vitreous.model.options import MultiLabel, Numbers
from vitreous.model.protocol import Model
from vitreous.serving.models import ServedModel, serve_model
from vitreous.serving.settings import Settings

LABELS = ("ant", "bee", "cat", "dog", "emu")
CONFIG = ViTConfig(
    image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=5, labels=LABELS
)
CALIBRATION = Calibration(
    2.0, 2000, familiarities=tuple(100 + fraction for fraction in FRACTIONS), true_probabilities=FRACTIONS
)


@pytest.fixture(scope="module")
def served() -> list[ServedModel]:
    torch.manual_seed(0)
    encoder = dataclasses.replace(CONFIG, num_classes=0, labels=(), registers=2)
    segmenter = SegmenterConfig(encoder, num_classes=3, labels=("Background", "pet", "edge"))
    models: dict[str, Model] = {
        "five": build_vit(CONFIG),
        "bare": build_vit(encoder),
        "masks": build_segmenter(segmenter),
        "bit": build(ResNetConfig(image_size=(32, 32), stages=(1, 1), width=32, num_classes=4)),
        "sure": build_vit(dataclasses.replace(CONFIG, calibration=CALIBRATION)),
        "tags": build_vit(dataclasses.replace(CONFIG, output=MultiLabel((0.1, 0.9, 0.1, 0.9, 0.1)))),
        "price": build_vit(
            dataclasses.replace(CONFIG, num_classes=1, labels=("price",), output=Numbers((9.5,), (2.0,)))
        ),
    }
    models["sure"].familiarity = Familiarity.fit(torch.randn(50, CONFIG.width), torch.arange(50) % 5)
    return [serve_model(model, id, id, "cpu", max_batch=4) for id, model in models.items()]


@pytest.fixture(scope="module")
def live(served: list[ServedModel]) -> Iterator[Live]:
    with in_thread(served, Settings(max_batch=4, max_wait_ms=20)) as live:
        yield live


def sample_image(seed: int = 0, height: int = 60, width: int = 90) -> bytes:
    return encoded(smooth(height, width, seed))


@pytest.mark.parametrize(("id", "index"), [("five", 0), ("bit", 3), ("sure", 4)])
def test_classify_equals_the_predictor(live: Live, served: list[ServedModel], id: str, index: int) -> None:
    [wanted] = Predictor(served[index].model, "cpu", top=3)(sample_image())  # type: ignore[arg-type]
    answer = live.request("POST", f"/v1/classify?top=3&model={id}", sample_image()).json
    assert answer["model"] == id
    assert [one["label"] for one in answer["predictions"]] == [one.label for one in wanted.predictions]
    ours, theirs = (
        [one["probability"] for one in answer["predictions"]],
        [one.probability for one in wanted.predictions],
    )
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_multilabel_equals_the_predictor(live: Live, served: list[ServedModel]) -> None:
    [wanted] = MultiLabelPredictor(served[5].model, "cpu")(sample_image())
    answer = live.request("POST", "/v1/multilabel?model=tags&top=4", sample_image()).json
    assert answer["model"] == "tags"
    assert wanted.labels
    for key, labels in (("labels", wanted.labels), ("predictions", wanted.predictions[:4])):
        assert [one["label"] for one in answer[key]] == [one.label for one in labels]
        assert [one["probability"] for one in answer[key]] == pytest.approx(
            [one.probability for one in labels], abs=1e-5
        )


def test_regress_equals_the_predictor(live: Live, served: list[ServedModel]) -> None:
    [wanted] = RegressPredictor(served[6].model, "cpu")(sample_image())
    answer = live.request("POST", "/v1/regress?model=price", sample_image()).json
    assert answer == {"values": {"price": pytest.approx(wanted.values["price"], abs=1e-4)}, "model": "price"}


def test_the_page_explains_classes_of_a_multilabel_model_but_not_numbers(live: Live) -> None:
    models = {one["id"]: one for one in live.request("GET", "/v1/model").json["models"]}
    assert [models[id]["classifies"] for id in ("five", "bare", "masks", "tags", "price")] == [
        True,
        False,
        False,
        True,
        False,
    ]
    [top, *_] = live.request("POST", "/v1/multilabel?model=tags", sample_image()).json["predictions"]
    shown = live.request("POST", "/v1/images?model=tags", sample_image()).json
    assert shown["predictions"][0]["probability"] == pytest.approx(top["probability"], abs=1e-5)
    explained = live.request("POST", "/v1/explain?model=tags&target=cat", sample_image()).json
    assert explained["target"] == {"index": 2, "label": "cat"}
    shown = live.request("POST", "/v1/images?model=price", sample_image()).json
    assert shown["predictions"] is None
    assert live.request("POST", "/v1/explain?model=price&method=rollout", sample_image()).status == 200
    assert live.request("GET", f"/v1/images/{shown['id']}/walk?patch=0&model=price").status == 200


def test_a_calibrated_model_returns_label_sets_and_unknown_images(live: Live, served: list[ServedModel]) -> None:
    [wanted] = Predictor(served[4].model, "cpu", coverage=0.9)(sample_image())  # type: ignore[arg-type]
    answer = live.request("POST", "/v1/classify?model=sure&coverage=0.9", sample_image()).json
    assert (answer["unknown"], answer["familiarity"]) == (wanted.unknown, wanted.familiarity)
    assert answer["unknown"] is True
    assert wanted.label_set
    assert [one["label"] for one in answer["label_set"]] == [one.label for one in wanted.label_set]
    assert live.request("POST", "/v1/classify?model=sure", sample_image()).json["label_set"] is None
    shown = live.request("POST", "/v1/images?model=sure", sample_image()).json
    assert shown["unknown"] is True
    assert shown["predictions"][0]["probability"] == pytest.approx(wanted.predictions[0].probability, abs=1e-5)


def test_a_coverage_is_rejected_if_it_has_no_meaning(live: Live) -> None:
    plain = live.request("POST", "/v1/classify?model=five", sample_image()).json
    assert (plain["unknown"], plain["familiarity"], plain["label_set"]) == (None, None, None)
    reply = live.request("POST", "/v1/classify?model=five&coverage=0.9", sample_image())
    assert (reply.status, reply.json["error"]["code"]) == (409, "not_calibrated")
    assert live.request("POST", "/v1/classify?model=sure&coverage=2", sample_image()).status == 422


@pytest.mark.parametrize("id", ["five", "bare", "bit"])
def test_embed_equals_the_predictor(live: Live, served: list[ServedModel], id: str) -> None:
    model = next(one.model for one in served if one.id == id)
    answer = live.request("POST", f"/v1/embed?model={id}", sample_image()).json
    wanted = Predictor(model, "cpu").embed(sample_image())[0]  # type: ignore[arg-type]
    assert answer["width"] == len(answer["embedding"]) == len(wanted)
    torch.testing.assert_close(torch.tensor(answer["embedding"]), wanted, atol=1e-5, rtol=1e-4)


def test_top_may_exceed_the_number_of_classes(live: Live) -> None:
    predictions = live.request("POST", "/v1/classify?top=1000", sample_image()).json["predictions"]
    assert sorted(one["label"] for one in predictions) == sorted(LABELS)
    assert sum(one["probability"] for one in predictions) == pytest.approx(1)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", None])
def test_a_form_and_a_raw_body_give_the_same_response(live: Live, format: str, kind: str | None) -> None:
    data = encoded(smooth(40, 50), format)
    bare = live.request("POST", "/v1/classify", data, kind)
    before = b'--a"b\r\nContent-Disposition: form-data; name="other"\r\n\r\nno\r\n--a"b\r\n'
    field = b'Content-Disposition: form-data; name="image"; filename="x.png"\r\nContent-Type: image/png\r\n\r\n'
    body = before + field + data + b'\r\n--a"b--\r\n'
    form = live.request("POST", "/v1/classify", body, 'multipart/form-data; boundary="a\\"b"')
    assert bare.status == 200
    assert form.json == bare.json


def test_results_do_not_depend_on_the_batch(live: Live) -> None:
    """Valid and truncated images sent together get the same responses as alone."""
    cut = sample_image(3)[:400]
    bodies = [cut if number % 5 == 3 else sample_image(number % 7) for number in range(40)]
    alone = {body: live.request("POST", "/v1/classify", body) for body in set(bodies)}
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(lambda body: live.request("POST", "/v1/classify", body), bodies))
    for body, answer in zip(bodies, together, strict=True):
        assert answer.status == alone[body].status == (422 if body is cut else 200)
        if answer.status == 200:
            pairs = zip(answer.json["predictions"], alone[body].json["predictions"], strict=True)
            for ours, theirs in pairs:
                assert ours["index"] == theirs["index"]
                assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-5)
    sizes = live.request("GET", "/metrics").body.decode()
    assert 'vitreous_batch_pictures_bucket{le="1"}' in sizes
    total, batches = (
        float(
            next(line for line in sizes.splitlines() if line.startswith(f"vitreous_batch_pictures_{name} ")).split()[1]
        )
        for name in ("sum", "count")
    )
    assert total > batches  # some shared a batch


def test_a_mask_has_the_size_of_its_image(live: Live) -> None:
    answer = live.request("POST", "/v1/segment?model=masks", sample_image()).json
    mask = Image.open(io.BytesIO(base64.b64decode(answer["mask"])))
    ids = np.asarray(mask)
    assert mask.mode == "P"
    assert (answer["height"], answer["width"]) == ids.shape == (60, 90)
    assert sum(one["share"] for one in answer["classes"]) == pytest.approx(1)
    palette = mask.getpalette()
    assert palette is not None
    for one in answer["classes"]:
        assert one["share"] == pytest.approx(float((ids == one["index"]).mean()))
        assert one["label"] == ("Background", "pet", "edge")[one["index"]]
        assert one["color"] == "#" + bytes(palette[3 * one["index"] : 3 * one["index"] + 3]).hex()


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/classify?model=bare", 409, "no_head"),
        ("/v1/classify?model=masks", 409, "no_head"),
        ("/v1/classify?model=tags", 409, "no_head"),
        ("/v1/classify?model=price", 409, "no_head"),
        ("/v1/multilabel", 409, "no_multilabel"),
        ("/v1/multilabel?model=price", 409, "no_multilabel"),
        ("/v1/regress?model=tags", 409, "no_numbers"),
        ("/v1/regress", 409, "no_numbers"),
        ("/v1/explain?model=price", 409, "no_head"),
        ("/v1/embed?model=masks", 409, "no_embedding"),
        ("/v1/segment", 409, "no_masks"),
        ("/v1/segment?model=bit", 409, "no_masks"),
        ("/v1/explain?model=bare", 409, "no_head"),
        ("/v1/explain?model=masks&method=occlusion", 409, "no_head"),
        ("/v1/explain?model=bit&method=attention", 409, "no_attention"),
        ("/v1/explain?method=gradient", 422, "bad_parameter"),
        ("/v1/explain?target=horse", 422, "bad_parameter"),
        ("/v1/explain?target=5", 422, "bad_parameter"),
    ],
)  # fmt: skip
def test_unsupported_tasks_and_parameters_are_rejected(live: Live, path: str, status: int, code: str) -> None:
    answer = live.request("POST", path, sample_image())
    assert (answer.status, answer.code) == (status, code)


def test_an_empty_target_is_the_top_class_and_an_invalid_one_is_named(live: Live) -> None:
    missing, empty = (live.request("POST", f"/v1/explain{query}", sample_image()).json for query in ("", "?target="))
    assert empty == missing
    assert empty["target"]["index"] == empty["predictions"][0]["index"]
    wrong = live.request("POST", "/v1/explain?target=horse", sample_image()).json["error"]["message"]
    assert all(word in wrong for word in ("target", "'horse'", "from 0 to 4"))


@pytest.mark.parametrize("method", ["relevance", "rollout", "attention", "occlusion"])
def test_explanations(live: Live, served: list[ServedModel], method: str) -> None:
    answer = live.request("POST", f"/v1/explain?method={method}&target=cat", sample_image()).json
    assert np.shape(answer["values"]) == tuple(answer["grid"]) == (3, 4)
    about_a_class = method in ("relevance", "occlusion")
    assert answer["target"] == ({"index": 2, "label": "cat"} if about_a_class else None)
    assert answer["picture"] == {"width": 90, "height": 60}
    assert (
        answer["predictions"]
        == live.request("POST", "/v1/explain?method=attention", sample_image()).json["predictions"]
    )
    if method == "occlusion":
        from vitreous.data.image import fit
        from vitreous.explanation.attention_and_logit_lens import capture
        from vitreous.explanation.rollout_relevance_occlusion import as_patches, occlusion
        from vitreous.model.inputs import normalise

        pixels = fit(sample_image(), CONFIG.image_size, CONFIG.preprocessing)[None].float() / 255
        drops = occlusion(capture(served[0].model, normalise(pixels, CONFIG.preprocessing)), 2)  # type: ignore[arg-type]
        np.testing.assert_allclose(answer["values"], as_patches(drops, CONFIG.patch_stride).numpy(), atol=1e-5)


def test_the_served_models_are_described(live: Live) -> None:
    answer = live.request("GET", "/v1/model").json
    assert answer["model"] == "five"
    five, bare, masks, bit, *_ = answer["models"]
    tasks = ["classify", "embed", "segment", "classify", "classify", "multilabel", "regress"]
    assert [one["task"] for one in answer["models"]] == tasks
    assert (five["labels"], five["classes"], five["grid"], five["heads"]) == (list(LABELS), 5, [3, 4], 4)
    assert bare["tokens"] == {"prefix": ["class", "register 1", "register 2"], "patches": 12, "total": 15}
    assert masks["labels"] == ["Background", "pet", "edge"]
    assert bit["tokens"] is None
    assert bit["labels"] == ["class 0", "class 1", "class 2", "class 3"]
    assert five["parameters"] == sum(parameter.numel() for parameter in build_vit(CONFIG).parameters())


def test_labels_that_are_not_valid_text_are_escaped(served: list[ServedModel]) -> None:
    """Labels come from folder names and may contain any bytes, but responses must be JSON."""
    strange = ("\udcff", '"', "\0", "猫", "<b>")
    model = build_vit(dataclasses.replace(CONFIG, labels=strange))
    with in_thread([serve_model(model, device="cpu")]) as live:
        predictions = live.request("POST", "/v1/classify", sample_image()).json["predictions"]
        assert {one["label"] for one in predictions} == {"?", '"', "\0", "猫", "<b>"}
        assert live.request("GET", "/v1/model").json["models"][0]["labels"] == ["?", '"', "\0", "猫", "<b>"]
        assert live.request("POST", "/v1/explain", sample_image()).status == 200


def test_health_and_model_description_endpoints(live: Live) -> None:
    assert live.request("GET", "/healthz").json == {"status": "ok"}
    schema = live.request("GET", "/openapi.json").json
    for path in ("/v1/classify", "/v1/multilabel", "/v1/regress", "/v1/embed", "/v1/segment", "/v1/explain"):
        post = schema["paths"][path]["post"]
        assert "image/jpeg" in post["requestBody"]["content"]
        assert post["responses"]["200"]["content"]["application/json"]["example"]
        assert post["responses"]["429"]["content"]["application/json"]["example"]["error"]["code"] == "busy"
    page = live.request("GET", "/docs")
    assert page.status == 200
    assert b"://" not in page.body  # nothing is loaded from another server
    for one in (one for all in schema["paths"].values() for one in all.values()):
        assert re.fullmatch("[a-z]+[A-Za-z]*", one["operationId"])
        assert one["summary"]
        assert one["description"]


def test_the_schema_lists_the_errors_that_can_occur(live: Live) -> None:
    schema = live.request("GET", "/openapi.json").json
    operations = {(path, name): one for path, all in schema["paths"].items() for name, one in all.items()}
    for (path, method), operation in operations.items():
        assert "500" in operation["responses"], path
        if method == "get":
            assert not {"400", "408", "415"} & set(operation["responses"]), path
        if path.startswith("/v1"):
            assert "422" in operation["responses"], path
    assert {one["type"] for one in schema["components"]["securitySchemes"].values()} == {"http", "apiKey"}
    described = schema["components"]["schemas"]["Described"]["properties"]
    [model, *_] = live.request("GET", "/v1/model").json["models"]
    assert set(model) == set(described)
    assert all(set(kind) & {"type", "anyOf"} for kind in described.values())


def test_json_bodies_with_one_or_several_images(live: Live) -> None:
    """Several images get a list, in which a damaged image is an error and the others are not affected."""
    plain = live.request("POST", "/v1/classify?top=2", sample_image()).json
    text = base64.b64encode(sample_image()).decode()

    def post(path: str, body: object) -> Reply:
        return live.request("POST", path, json.dumps(body).encode(), "application/json")

    for given in (text, f"data:image/png;base64,{text}"):
        assert post("/v1/classify?top=2", {"image": given}).json == plain
    found = post("/v1/classify?top=2", {"images": [text, "AAAA", "?", text]}).json
    assert found["model"] == "five"
    assert [set(one) for one in found["results"]] == [set(plain), {"error"}, {"error"}, set(plain)]
    assert [one["error"]["code"] for one in found["results"][1:3]] == ["unsupported_type", "bad_parameter"]
    for one in (found["results"][0], found["results"][3]):
        assert [each["label"] for each in one["predictions"]] == [each["label"] for each in plain["predictions"]]
    vectors = post("/v1/embed", {"images": [text]}).json["results"]
    assert len(vectors) == 1
    assert vectors[0]["width"] == CONFIG.width
    assert post("/v1/explain?method=attention", {"image": text}).status == 200
    bad: list[object] = [[], {}, {"image": 3}, {"images": []}, {"images": [text] * 5}, {"image": text, "top": 3}]
    for body in bad:
        assert post("/v1/classify", body).code == "bad_parameter"
    assert post("/v1/explain", {"images": [text]}).code == "bad_parameter"
    assert live.request("POST", "/v1/classify", b'{"image', "application/json").code == "bad_json"
    assert live.request("POST", "/v1/classify", b"[[" * 500, "application/json").code == "bad_parameter"


def test_requests_have_an_id_and_their_times(live: Live) -> None:
    ours = live.request("POST", "/v1/classify", sample_image(), X_Request_Id="job-7.b").headers
    assert ours["x-request-id"] == "job-7.b"
    times = dict(re.findall(r"(\w+);dur=([\d.]+)", ours["server-timing"]))
    assert set(times) == {"upload", "compute"}
    assert float(times["compute"]) > 0
    other, wrong = (live.request("GET", "/v1/models", **given).headers for given in ({}, {"X_Request_Id": "a b"}))
    assert len({other["x-request-id"], wrong["x-request-id"], "a b"}) == 3


def test_other_websites_can_be_allowed(served: list[ServedModel]) -> None:
    """By default, scripts of other websites are rejected and no website may show the page in a frame."""
    site, frame = "https://app.example", "https://blog.example"
    with in_thread(served[:1], Settings(cors_origins=(site,), frame_origins=(frame,), api_key="sesame")) as live:
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x-api-key"}
        preflight = live.request("OPTIONS", "/v1/classify", Origin=site, **asked)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == site
        assert "x-api-key" in preflight.headers["access-control-allow-headers"]
        reply = live.request("POST", "/v1/classify", sample_image(), X_API_Key="sesame", Origin=site)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, site)
        refused = live.request("OPTIONS", "/v1/classify", Origin="https://evil.example", **asked)
        assert refused.status == 401
        assert "access-control-allow-origin" not in refused.headers
        assert live.request("GET", "/").headers["content-security-policy"].endswith(f"frame-ancestors {frame}")
    with in_thread(served[:1], Settings(cors_origins=("*",))) as live:
        foreign = {"Origin": "https://any.example", "Sec_Fetch_Site": "cross-site"}
        assert live.request("POST", "/v1/classify", sample_image(), **foreign).status == 200
        assert live.request("GET", "/").headers["content-security-policy"].endswith("frame-ancestors 'none'")


def test_an_unknown_parameter_gets_a_suggestion(live: Live) -> None:
    message = live.request("POST", "/v1/classify?topp=3", sample_image()).json["error"]["message"]
    assert "'topp'" in message
    assert "did you mean 'top'" in message


def test_the_page_may_load_nothing_from_elsewhere(live: Live) -> None:
    answer = live.request("GET", "/")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; img-src 'self' blob: data:;")
    assert "unsafe" not in policy


def test_a_connection_may_send_several_requests(live: Live) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    for body in (sample_image(), b"nonsense", sample_image(), b"", sample_image()):
        connection.request("POST", "/v1/classify", body)
        answer = connection.getresponse()
        assert answer.status == {sample_image(): 200, b"nonsense": 415, b"": 400}[body]
        json.loads(answer.read())
    connection.close()


def test_the_api_key_is_required(served: list[ServedModel]) -> None:
    with in_thread(served[:1], Settings(api_key="open sesame")) as live:
        assert live.request("POST", "/v1/classify", sample_image()).code == "unauthorized"
        assert live.request("POST", "/v1/classify", sample_image(), X_API_Key="open sesam").code == "unauthorized"
        assert (
            live.request("POST", "/v1/classify", sample_image(), Authorization="Basic open sesame").code
            == "unauthorized"
        )
        assert live.request("POST", "/v1/classify", sample_image(), Authorization="Bearer open sesame").status == 200
        assert live.request("POST", "/v1/classify", sample_image(), X_API_Key="open sesame").status == 200
        assert live.request("GET", "/v1/model").status == 401
        assert live.request("GET", "/metrics").status == 401
        assert live.request("GET", "/v1/images/0/lens").status == 401
        for path in ("/", "/healthz", "/readyz", "/openapi.json"):
            assert live.request("GET", path).status == 200
        paths = live.request("GET", "/openapi.json").json["paths"]
        assert paths["/v1/classify"]["post"]["security"] == [{"bearer": []}, {"key": []}]
        assert paths["/healthz"]["get"]["security"] == []


def wait_until(live: Live, name: str, value: float) -> None:
    """Wait until a metric has a value."""
    for _ in range(2000):
        lines = live.request("GET", "/metrics").body.decode().splitlines()
        if any(line.startswith(f"{name} ") and float(line.split()[1]) == value for line in lines):
            return
        time.sleep(0.01)
    raise TimeoutError(f"{name} is not {value}")


def test_a_full_queue_gives_429_immediately(served: list[ServedModel]) -> None:
    """The model is held, so that the queue fills: two are computed, one waits, and all others get 429."""
    go_on = threading.Event()
    predictor = served[0].predictor
    hold = predictor.model.register_forward_pre_hook(lambda *_: go_on.wait(30) and None)
    try:
        go_on.set()
        with (
            in_thread(served[:1], Settings(max_batch=1, max_wait_ms=0, queue=1)) as live,
            ThreadPoolExecutor(16) as pool,
        ):
            go_on.clear()
            pending = []
            for number in range(3):  # two workers have one each, and one waits
                pending.append(pool.submit(live.request, "POST", "/v1/classify", sample_image(number)))
                wait_until(live, "vitreous_waiting", int(number == 2))
                wait_until(live, "vitreous_open_requests", number + 2)  # with the request for the metrics
                wait_until(live, "vitreous_batch_pictures_sum", 1 + min(number + 1, 2))  # and the first, to warm up
            refused = [live.request("POST", "/v1/classify", sample_image(number)) for number in range(9)]
            assert {(one.status, one.code, one.headers["retry-after"]) for one in refused} == {(429, "busy", "1")}
            assert live.request("POST", "/v1/classify", sample_image()).status == 429
            assert live.request("GET", "/healthz").status == 200
            go_on.set()
            assert [one.result().status for one in pending] == [200] * 3
            assert live.request("POST", "/v1/classify", sample_image()).status == 200
    finally:
        go_on.set()
        hold.remove()


@pytest.mark.slow
def test_a_slow_response_times_out(served: list[ServedModel]) -> None:
    go_on = threading.Event()
    predictor = served[0].predictor
    hold = predictor.model.register_forward_pre_hook(lambda *_: go_on.wait(30) and None)
    try:
        go_on.set()
        with in_thread(served[:1], Settings(timeout=2)) as live:
            go_on.clear()
            answer = live.request("POST", "/v1/classify", sample_image())
            assert (answer.status, answer.code) == (503, "timeout")
            go_on.set()
            assert live.request("POST", "/v1/classify", sample_image()).status == 200
    finally:
        go_on.set()
        hold.remove()
