"""The JavaScript of the page: unit tests in Node.js, types, and bytes that Python encodes."""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from every_family import FAMILIES, small_model
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.model.build import build, build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.swin_config import SwinConfig
from vitreous.page import STATIC, results
from vitreous.page.model_facts import model_facts

ROOT = Path(__file__).parents[2]
NODE, NPM = shutil.which("node"), shutil.which("npm")
TYPESCRIPT = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))["devDependencies"]["typescript"]
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")


@needs_node
def test_unit_tests() -> None:
    files = map(str, sorted(Path(__file__).parent.glob("*.test.js")))
    run = subprocess.run([str(NODE), "--test", *files], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


DECODE = """
const { AttentionBytes, LayerGrid } = await import(process.argv[1]);
const { bytes, shape, prefix, layer, map } = JSON.parse(process.argv[2]);
const buffer = Uint8Array.from(Buffer.from(bytes, "base64")).buffer;
const matrix = new AttentionBytes(buffer, shape, prefix, new LayerGrid(layer, map, prefix));
const queries = [...Array(prefix + map[0] * map[1]).keys()];
const rows = [...Array(shape[0]).keys()].flatMap((head) => queries.map((query) => [...matrix.row(head, query)]));
console.log(JSON.stringify(rows));
"""


def decoded(captured: CapturedForward, layer: int) -> np.ndarray:
    """Return the attention from every token of the map to every token of the map, as the page decodes it."""
    config = captured.model.config
    given = {
        "bytes": base64.b64encode(results.attention_bytes(captured, layer)).decode(),
        "shape": config.attention_shapes[layer][:3],
        "prefix": config.num_prefix_tokens,
        "layer": model_facts(captured.model, "model", "model", ())["layers"][layer],
        "map": config.map_grid,
    }
    module = (STATIC / "results" / "token-matrices.js").as_uri()
    command = [str(NODE), "--input-type=module", "--eval", DECODE, "--", module, json.dumps(given)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = np.array(json.loads(run.stdout))
    return rows.reshape(-1, rows.shape[1], rows.shape[1])


@needs_node
def test_the_page_decodes_the_attention_of_the_server(small: ViTConfig) -> None:
    import torch

    captured = capture(build_vit(small), torch.randn(1, 3, *small.image_size))
    expected = captured.weights(1)[0].numpy()
    np.testing.assert_allclose(decoded(captured, 1), expected, rtol=0, atol=expected.max() / 500)


@needs_node
@pytest.mark.parametrize("layer", [1, 2])
def test_the_page_decodes_windows_of_smaller_and_larger_patches(layer: int) -> None:
    import torch

    config = SwinConfig((20, 28), width=8, depths=(2, 1), stage_heads=(1, 2), window=(3, 3), num_classes=0)
    captured = capture(build(config), torch.randn(1, 3, *config.image_size))
    found = decoded(captured, layer)
    for query in itertools.product(*map(range, config.map_grid)):
        expected = captured.on_map(captured.attention_from(layer, query)[0], layer).flatten(1).numpy()
        rows = found[:, query[0] * config.map_grid[1] + query[1]]
        np.testing.assert_allclose(rows, expected, rtol=0, atol=expected.max() / 500)


STEPS = """
globalThis.navigator ??= { language: "en" };
const { stepsOf, equationOf, valuesOf } = await import(process.argv[1]);
const { has, setLanguage, t } = await import(process.argv[2]);
globalThis.document = { documentElement: {}, querySelectorAll: () => [] };
const wrong = [];
for (const language of ["en", "zh"]) {
  setLanguage(language);
  for (const { name, model } of JSON.parse(process.argv[3])) {
    for (let layer = 0; layer < model.depth; layer++) {
      const names = ["weights", "pixels", "scale", "tokens", "mask"];
      const tensors = Object.fromEntries(names.map((each) => [each, { data: [0, 1] }]));
      const values = valuesOf(model, { grid: model.grid }, { layer, head: 0, patch: 0 }, tensors);
      Object.assign(values, { label: "", best: "" });
      for (const { name: step, texts } of stepsOf(model, { layer, convolved: true, masked: true, padded: true })) {
        const missing = [`walk-${step}`, ...texts].filter((key) => !has(key));
        const words = missing.length ? [] : [equationOf(step, model, layer), ...texts.map((key) => t(key, values))];
        const bad = words.filter((each) => !each || /undefined|NaN/.test(each));
        if (missing.length || bad.length) wrong.push([language, name, layer, step, missing, bad]);
      }
    }
  }
}
console.log(JSON.stringify(wrong));
"""


@needs_node
def test_the_walk_of_every_family_has_texts() -> None:
    given = [
        {"name": family, "model": model_facts(small_model(family), "model", "model", ())}
        for family, config in FAMILIES.items()
        if config.has_attention
    ]
    modules = [(STATIC / path).as_uri() for path in ("walk/steps.js", "text/translate.js")]
    command = [str(NODE), "--input-type=module", "--eval", STEPS, "--", *modules, json.dumps(given)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []


def test_every_error_of_the_server_has_a_text() -> None:
    """Codes of tasks that the page does not request, or explains in its own words, are exempt."""
    code = re.compile(r"ApiError\(\s*\d+(?: if large else \d+)?,\s*(?:\"(\w+)\" if large else )?\"(\w+)\"")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "vitreous" / "serving").rglob("*.py"))
    codes = {each for found in code.findall(sources) for each in found if each}
    assert {"busy", "too_many_pixels", "unreadable_image"} <= codes
    exempt = {"client_disconnected", "not_calibrated", "no_attention", "no_head", "no_masks", "no_positions"}
    texts = (STATIC / "text" / "en.js").read_text(encoding="utf-8")
    assert {each for each in codes - exempt if f'"error-{each}"' not in texts} == set()


@pytest.mark.slow
@pytest.mark.skipif(NPM is None, reason="npm is not installed")
def test_types() -> None:
    """TypeScript is installed once, outside of the repository. Without a network the test is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "vitreous", f"typescript-{TYPESCRIPT}")
    compiler = cache / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [str(NPM), "install", "--no-save", "--prefix", str(cache), f"typescript@{TYPESCRIPT}"]
        if subprocess.run(command, capture_output=True, timeout=120).returncode:
            pytest.skip(f"npm cannot install typescript {TYPESCRIPT}")
    run = subprocess.run([str(NODE), str(compiler), "--project", str(ROOT)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
