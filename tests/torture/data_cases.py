"""Hostile and odd data: images, folders, tables and archives."""

import contextlib
import csv
import importlib.util
import io
import json
import os
import signal
import socket
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from torture.runner import Case
from torture.scene import NotRun, Scene, finish, rejected, succeeded, wait_until

LITTLE_MEMORY = 1500  # MB
MARK = "TORTURE_CASE"  # environment variable that marks the processes of a case


def picture(height: int = 40, width: int = 50) -> Any:
    """Return a smooth image."""
    from PIL import Image

    from images import smooth

    return Image.fromarray(smooth(height, width))


def predictions(scene: Scene, folder: Path) -> dict[str, Any]:
    """Predict all images of a folder; return the JSON line of each by file name."""
    done = succeeded(scene.vitreous("predict", scene.checkpoint(), folder, "--json"))
    rows = [json.loads(line) for line in done.out.splitlines()]
    return {Path(row["path"]).name: row for row in rows}


# ---- Odd images ------------------------------------------------------------------------------------------------------


def colour_modes(scene: Scene) -> str:
    from PIL import Image

    image, folder = picture(), scene.folder / "odd"
    folder.mkdir()
    palette = image.quantize(16)
    images = {
        "cmyk.jpg": image.convert("CMYK"), "grey.png": image.convert("L"), "grey-alpha.png": image.convert("LA"),
        "alpha.png": image.convert("RGBA"), "palette.png": palette, "bits.png": image.convert("1"),
        "grey16.png": image.convert("L").convert("I").point(lambda value: value * 257).convert("I;16"),
        "float.tiff": image.convert("F"), "lab.tiff": image.convert("LAB"), "ycbcr.tiff": image.convert("YCbCr"),
        "cmyk.tiff": image.convert("CMYK"), "bitmap.bmp": image, "modern.webp": image.convert("RGBA"),
    }  # fmt: skip
    for name, one in images.items():
        one.save(folder / name)
    palette.save(folder / "transparent.png", transparency=3)
    palette.save(folder / "animated.gif", save_all=True, append_images=[palette.rotate(90)] * 3)
    image.save(folder / "animated.webp", save_all=True, append_images=[image.rotate(90)] * 3)
    rows = predictions(scene, folder)
    failed = {name: row.get("error") for name, row in rows.items() if "error" in row}
    assert not failed, failed
    assert len(rows) == len(images) + 3, sorted(rows)
    assert Image.open(folder / "grey16.png").mode.startswith("I")
    return f"{len(rows)} images predicted"


def rotations(scene: Scene) -> str:
    """Images that are stored rotated, with the orientation that restores them."""
    from PIL import Image

    upright, folder = picture(), scene.folder / "rotated"
    folder.mkdir()
    transforms = {
        1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    for orientation, transform in transforms.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = upright if transform is None else upright.transpose(transform)
        stored.save(folder / f"{orientation}.png", exif=exif)
    rows = predictions(scene, folder)
    distinct = {json.dumps(row["predictions"]) for row in rows.values()}
    assert len(rows) == 8, rows
    assert len(distinct) == 1, f"{len(distinct)} different results"
    return "the same probabilities for all 8 orientations"


def extreme_sizes(scene: Scene) -> str:
    folder = scene.folder / "sizes"
    folder.mkdir()
    sizes = [(1, 1), (1, 20_000), (20_000, 1), (2, 3), (5000, 1)]
    for height, width in sizes:
        picture(height, width).save(folder / f"{height}x{width}.png")
    rows = predictions(scene, folder)
    assert len(rows) == len(sizes), rows
    assert not [row for row in rows.values() if "error" in row], rows
    return "predicted: " + ", ".join(f"{height} x {width}" for height, width in sizes)


def broken_images(scene: Scene) -> str:
    """Broken images among good ones, in prediction and in training."""
    from images import encoded

    data = scene.images(count=30)
    broken = {
        "truncated.jpg": encoded(picture(), "JPEG")[:400], "empty.jpg": b"", "text.png": b"a cat",
        "header.png": encoded(picture())[:40], "noise.webp": os.urandom(500),
        "half.gif": encoded(picture(), "GIF")[:300],
    }  # fmt: skip
    for name, content in broken.items():
        (data / "cat" / name).write_bytes(content)
    done = scene.vitreous("predict", scene.checkpoint(), data / "cat", "--json")
    assert "Traceback" not in done.errors, done.errors[-500:]
    rows = {Path(row["path"]).name: row for row in map(json.loads, done.out.splitlines())}
    assert sum("predictions" in row for row in rows.values()) == 30, f"{len(rows)} rows: {done.errors[-300:]}"
    named = [name for name in broken if name in done.out + done.errors]
    assert len(named) == len(broken), f"only {named} are named"
    check = scene.vitreous("data", "check", data)
    assert check.status == 1, check.out
    out = scene.folder / "run"
    succeeded(finish(scene.train_images(data, out, "--max-unreadable=0.5")))
    listed = json.loads((out / "metrics.json").read_text())["unreadable_files"]
    assert len(listed) == len(broken), listed
    strict = rejected(finish(scene.train_images(data, scene.folder / "strict")), "cannot be read")
    return f"30 predicted, {len(broken)} named (exit {done.status}); trained without them; by default {strict}"


def bombs(scene: Scene) -> str:
    from image_bombs import bomb, sides

    folder = scene.folder / "bombs"
    folder.mkdir()
    (folder / "bomb.png").write_bytes(bomb(20_000))
    (folder / "lying.png").write_bytes(bomb(20_000, sides(8)))
    picture().save(folder / "good.png")
    done = scene.vitreous("predict", scene.checkpoint(), folder, "--json")
    assert "Traceback" not in done.errors, done.errors[-500:]
    assert done.memory < LITTLE_MEMORY, f"{done.memory:.0f} MB"
    rows = {Path(row["path"]).name: row for row in map(json.loads, done.out.splitlines())}
    assert "predictions" in rows["good.png"], done.out
    assert not any("predictions" in row for name, row in rows.items() if name != "good.png"), done.out[:500]
    return f"400-megapixel images rejected, the other predicted (exit {done.status}); {done.memory:.0f} MB"


# ---- Folders, tables and archives ------------------------------------------------------------------------------------


def strange_files(scene: Scene) -> str:
    data = scene.images(count=10)
    os.mkfifo(data / "cat" / "pipe.png")
    (data / "cat" / "device.png").symlink_to("/dev/zero")
    (data / "cat" / "endless.jpg").symlink_to("/dev/urandom")
    (data / "cat" / "nowhere.png").symlink_to("missing")
    (data / "cat" / "loop").symlink_to(data)
    (data / "cat" / "folder.png").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    try:
        here = os.getcwd()
        os.chdir(data / "cat")  # the path of a socket is limited to 108 bytes
        listener.bind("socket.png")
        os.chdir(here)
        check = scene.vitreous("data", "check", data, limit=60)
        assert check.status == 1, check.out
        assert "Traceback" not in check.errors, check.errors[-500:]
        assert "pipe.png" in check.out, check.out
        run = scene.train_images(data, scene.folder / "run", "--max-unreadable=0.9")
        succeeded(finish(run, 60))
    finally:
        listener.close()
    return "reported as unreadable and never opened; trained with the rest"


def tables(scene: Scene) -> str:
    """Tables whose rows lead to other files, pipes and devices."""
    data = scene.images(count=20)
    os.mkfifo(data / "pipe.png")
    secret = scene.folder / "secret.txt"
    secret.write_text("secret-content")
    good = [{"path": str(path.relative_to(data)), "label": path.parent.name} for path in sorted(data.rglob("*/*.png"))]
    bad = ["../secret.txt", "/etc/passwd", "pipe.png", "/dev/zero", "../../../../../../etc/hostname"]
    rows = good + [{"path": path, "label": "cat"} for path in bad]
    with open(data / "table.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "label"])
        writer.writeheader()
        writer.writerows(rows)
    (data / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ["table.csv", "table.jsonl"]
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), data / "table.parquet")
        files.append("table.parquet")
    except ModuleNotFoundError:
        pass
    for name in files:
        done = scene.vitreous("data", "check", data / name, limit=60)
        assert done.status == 1, f"{name}: {done.out}"
        text = done.out + done.errors
        assert "Traceback" not in text, text[-500:]
        assert "secret-content" not in text, "another file was printed"
        assert "root:" not in text, "/etc/passwd was printed"
    return f"{', '.join(files)}: the rows are unreadable images; no content of other files is printed"


def tar_escapes(scene: Scene) -> str:
    """Members with ../, absolute paths, links and devices."""
    from images import encoded

    outside, shard = scene.folder / "outside", scene.folder / "below" / "shard.tar"
    shard.parent.mkdir()
    (scene.folder / "secret.txt").write_text("secret-content")

    def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(content)
        archive.addfile(info, io.BytesIO(content))

    with tarfile.open(shard, "w") as archive:
        for index in range(20):
            member(f"{index:03d}.png", encoded(picture()))
            member(f"{index:03d}.cls", str(index % 2).encode())
        for name in ("../outside/a.png", f"{outside}/b.png", "..\\outside\\c.png"):
            member(name, encoded(picture()))
            member(name.replace(".png", ".cls"), b"1")
        member("link.png", kind=tarfile.SYMTYPE, link="../secret.txt")
        member("link.cls", b"0")
        member("hard.png", kind=tarfile.LNKTYPE, link="../../secret.txt")
        member("hard.cls", b"0")
        member("device.png", kind=tarfile.CHRTYPE)
        member("device.cls", b"0")
        member("pipe.png", kind=tarfile.FIFOTYPE)
        member("pipe.cls", b"1")
    before = sorted(path for path in scene.folder.rglob("*") if "cache" not in path.parts)
    done = scene.vitreous("data", "check", shard, limit=60)
    text = done.out + done.errors
    assert done.status in (0, 1), text
    assert "Traceback" not in text, text[-500:]
    assert "secret-content" not in text
    after = sorted(path for path in scene.folder.rglob("*") if "cache" not in path.parts)
    assert after == before, f"files were written: {set(after) - set(before)}"
    return f"exit {done.status}; read in place, nothing was written, no link was followed"


def table_bombs(scene: Scene) -> str:
    """A CSV of one endless line, deeply nested JSON, a number of 10^6 digits."""
    lines = {
        "long.csv": "path,label\n" + "x" * 30_000_000, "deep.jsonl": "[" * 1_000_000,
        "digits.jsonl": '{"path": ' + "9" * 1_000_000 + "}", "zeros.csv": "\0" * 1_000_000, "empty.csv": "",
    }  # fmt: skip
    messages = []
    for name, text in lines.items():
        (scene.folder / name).write_text(text)
        done = scene.vitreous("data", "check", scene.folder / name, limit=60)
        assert done.memory < LITTLE_MEMORY, f"{name}: {done.memory:.0f} MB"
        messages.append(rejected(done, name))
        assert len(messages[-1]) < 1000, f"{name}: a message of {len(messages[-1]):,} characters"
    return f"{len(lines)} files; {messages[1]}"


def scripts_in_labels(scene: Scene) -> str:
    """Labels, file names and folders with HTML, in the report, the explanation and the page's API."""
    script = "<img src=x onerror=alert(1)><script>alert(2)"
    data, out = scene.images(), scene.folder / "run"
    (data / "cat").rename(data / script)
    image = data / "dog" / "<svg onload=alert(3)>.png"
    (data / "dog" / "00.png").rename(image)
    succeeded(finish(scene.train_images(data, out)))
    succeeded(scene.vitreous("explain", out / "best", image, f"--out={scene.folder / 'explained'}"))
    pages = [out / "report.html", *(scene.folder / "explained").rglob("*.html")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for tag in ("<img src=x", "<script>alert", "<svg onload"):
            assert tag not in text, f"{page.name} contains {tag}"
    assert "&lt;img src=x" in pages[0].read_text(encoding="utf-8"), "the label is missing"
    card = (out / "best" / "README.md").read_text()
    assert "<script>alert" not in card, "the model card contains a script"
    return f"escaped in {len(pages)} pages and the model card"


def killed_ray_worker(scene: Scene) -> str:
    if importlib.util.find_spec("vitreous.cluster") is None:
        raise NotRun("vitreous.cluster is not part of this version")
    if importlib.util.find_spec("ray") is None:
        raise NotRun('ray is not installed: pip install "vitreous[ray]"')
    data, checkpoint = scene.images(count=400, size=32), scene.checkpoint()
    one, many = scene.folder / "one", scene.folder / "many"
    succeeded(scene.vitreous("embed", checkpoint, data, f"--out={one}", "--shard-size=50"))
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # the paths of sockets are limited
        variables = {"RAY_ADDRESS": "local", "RAY_TMPDIR": short, "RAY_AUTH_MODE": "disabled", MARK: str(scene.folder)}
        flags = ("--shard-size=50", "--engine=ray", "--workers=2")
        running = scene.start("embed", checkpoint, data, f"--out={many}", *flags, env=variables)
        wait_until(lambda: list(many.glob("*.parquet")) and ray_workers(scene.folder), running, 120)
        killed = ray_workers(scene.folder)[0]
        os.kill(killed, signal.SIGKILL)
        succeeded(finish(running, 240))
    rows = [embeddings(folder) for folder in (one, many)]
    assert len(rows[0]) == 800, len(rows[0])
    assert rows[0] == rows[1], f"{len(rows[1])} rows, or other values"
    return "one of two workers killed; the same 800 rows"


def embeddings(folder: Path) -> list[tuple[str, list[float]]]:
    import pyarrow.parquet as pq

    rows = [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return sorted((row["path"], row["embedding"]) for row in rows)


def ray_workers(folder: Path) -> list[int]:
    """Return the processes of Ray that compute for a case, and no others."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(b"ray::ShardProcess"):
                found += [int(process.name)] * (f"{MARK}={folder}".encode() in (process / "environ").read_bytes())
    return found


CASES = [
    Case("colour modes", "CMYK, 16 bits, palette, alpha, float, animated", "all are predicted", colour_modes),
    Case("EXIF rotations", "8 orientations of one image", "the same probabilities", rotations),
    Case("extreme sizes", "1 x 1, 1 x 20,000 and 20,000 x 1 pixels", "all are predicted", extreme_sizes),
    Case(
        "broken images",
        "truncated, empty and random files among good images",
        "named; the others are used; training stops above 5 %",
        broken_images,
    ),
    Case("PNG bombs", "400 megapixels in 50 kB", "rejected, little memory; others are predicted", bombs),
    Case("pipes and devices", "a FIFO, a socket, /dev/zero, links", "reported; never opened", strange_files),
    Case("tables with paths outside", "CSV, JSONL, Parquet: ../, /etc/passwd, a FIFO", "unreadable images", tables),
    Case("tar escapes", "../, absolute paths, links, devices", "nothing is written or followed", tar_escapes),
    Case("endless lines", "lines of 30 MB, nesting of 10^6, 10^6 digits", "exit 1, little memory", table_bombs),
    Case("scripts in labels", "HTML in labels and file names", "escaped in all pages", scripts_in_labels),
    Case("killed Ray worker", "kill -9 while embedding 800 images", "the same rows", killed_ray_worker, 400),
]
