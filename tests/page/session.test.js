// Requests of a session to the server: switched-off parts, and images that the server no longer has.

import assert from "node:assert/strict";
import { test } from "node:test";
import "./helpers.js";

const { ServerSession } = await import("../../vitreous/page/static/server/image-session.js");
const SMALL = { id: "small", global_attention: true, depth: 12, heads: 6 };

/** Replaces fetch by a server that knows the images of `stored` and assigns ids by content. Returns the paths of all requests. */
function serve(stored) {
  const paths = [];
  globalThis.fetch = async (path, { method, body }) => {
    paths.push(path);
    if (method === "POST") {
      stored.add(body.name);
      return Response.json({ id: body.name });
    }
    const [, , , id, , other] = path.split(/[/?]/);
    if (stored.has(id) && stored.has(other)) return Response.json({ second: [] });
    return Response.json({ error: { code: "unknown_image", message: "unknown image" } }, { status: 404 });
  };
  return paths;
}

test("only parts that the model has are switched off", async () => {
  const paths = serve(new Set());
  const off = async (parts, model = SMALL) => {
    await new ServerSession(model, { name: "a" }, parts).open();
    return new URL(paths.at(-1), "http://server").searchParams.get("off");
  };
  assert.equal(await off(["20", "11", "11.5", "11.6", "12.0", "0.0", "shuffled"]), "11,11.5,0.0,shuffled");
  assert.equal(await off(["20", "3.15"]), null);
  assert.equal(await off([]), null);
  assert.equal(await off(["1"], { ...SMALL, global_attention: false }), null);
});

for (const lost of [["first"], ["second"], ["first", "second"]])
  test(`images that the server has dropped are uploaded again: ${lost}`, async () => {
    const stored = new Set();
    const paths = serve(stored);
    const [first, second] = ["first", "second"].map((name) => new ServerSession(SMALL, { name }, []));
    await Promise.all([first.open(), second.open()]);
    for (const name of lost) stored.delete(name);
    assert.deepEqual(await first.jointPca(second, 3), { second: [] });
    assert.ok(paths.at(-1).startsWith("/v1/images/first/joint_pca/second?layer=3&model=small"));
  });
