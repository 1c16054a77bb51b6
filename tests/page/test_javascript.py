"""The JavaScript of the page: unit tests in Node.js, types, and bytes that Python encodes."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.page import STATIC, results

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
const { AttentionBytes } = await import(process.argv[1]);
const { bytes, shape, prefix, heads } = JSON.parse(process.argv[2]);
const matrix = new AttentionBytes(Uint8Array.from(Buffer.from(bytes, "base64")).buffer, shape, prefix);
const rows = heads.flatMap((head) => Array.from({ length: shape[1] }, (_, query) => [...matrix.row(head, query)]));
console.log(JSON.stringify(rows));
"""


@needs_node
def test_the_page_decodes_the_attention_of_the_server(small: ViTConfig) -> None:
    import torch

    captured = capture(build_vit(small), torch.randn(1, 3, *small.image_size))
    expected = captured.weights(1)[0].numpy()
    data = base64.b64encode(results.attention_bytes(captured, 1)).decode()
    given = {"bytes": data, "shape": expected.shape, "prefix": 1, "heads": list(range(small.num_heads))}
    module = (STATIC / "results" / "token-matrices.js").as_uri()
    command = [str(NODE), "--input-type=module", "--eval", DECODE, "--", module, json.dumps(given)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found = np.reshape(json.loads(run.stdout), expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=expected.max() / 500)


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
