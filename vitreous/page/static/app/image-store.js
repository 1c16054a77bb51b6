// @ts-check
// The last images that were opened, stored in this browser, so that they survive a reload and going back.

const COUNT = 8; // images
const LONGEST = 24 * 3600 * 1000; // milliseconds that an image is kept

/** Resolves to the result of `work(store)` in a transaction, or to null if the browser has no storage. */
async function inStore(mode, work) {
  try {
    const database = await finished(open());
    try {
      return await finished(work(database.transaction("images", mode).objectStore("images")));
    } finally {
      database.close();
    }
  } catch {
    return null; // storage is disabled or full
  }
}

function open() {
  const request = indexedDB.open("vitreous", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("images", { keyPath: "id" });
  return request;
}

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Returns the file with this id, or null. */
export async function storedImage(id) {
  const found = await inStore("readonly", (store) => store.get(id));
  return found && found.time > Date.now() - LONGEST ? found.blob : null;
}

/** Stores a file, and removes old ones. */
export async function storeImage(id, blob) {
  await inStore("readwrite", (store) => store.put({ id, blob, time: Date.now() }));
  const all = (await inStore("readonly", (store) => store.getAll())) ?? [];
  const newest = all.sort((a, b) => b.time - a.time);
  const old = newest.filter(({ time }, rank) => rank >= COUNT || time <= Date.now() - LONGEST);
  for (const { id: each } of old) await inStore("readwrite", (store) => store.delete(each));
}
