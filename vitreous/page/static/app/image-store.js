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
  const request = indexedDB.open("vitreous", 2);
  request.onupgradeneeded = ({ oldVersion }) => {
    if (oldVersion) request.result.deleteObjectStore("images"); // version 1 had no index
    request.result.createObjectStore("images", { keyPath: "id" }).createIndex("time", "time");
  };
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
  await removeOldImages();
}

/** Removes expired files, and all but the newest. */
export async function removeOldImages() {
  const expired = () => IDBKeyRange.upperBound(Date.now() - LONGEST);
  const count = (await inStore("readonly", (store) => store.index("time").count(expired()))) ?? 0;
  const oldestFirst = (await inStore("readonly", (store) => store.index("time").getAllKeys())) ?? [];
  for (const id of oldestFirst.slice(0, Math.max(count, oldestFirst.length - COUNT)))
    await inStore("readwrite", (store) => store.delete(id));
}
