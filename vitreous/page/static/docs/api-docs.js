// @ts-check
// Documentation of the API, drawn from the OpenAPI schema of this server.

import { byId, el } from "../widgets/dom.js";
import { t, translatePage } from "../text/translate.js";

async function start() {
  translatePage();
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: ${response.status} ${response.statusText}`);
  const schema = await response.json();
  const tags = new Map(); // operations by tag
  for (const [path, methods] of Object.entries(schema.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const [tag] = operation.tags ?? ["server"];
      tags.set(tag, [...(tags.get(tag) ?? []), operationView(path, method, operation)]);
    }
  }
  const sections = [...tags].flatMap(([tag, views]) => [el("h2", {}, t(`docs-${tag}`)), ...views]);
  byId("docs").append(el("p", { class: "soft" }, t("docs-about")), ...sections);
  document.body.dataset.ready = "yes";
}

function operationView(path, method, operation) {
  const { summary, description, parameters = [], requestBody, responses } = operation;
  const title = el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path), summary);
  const parts = [el("p", {}, withCode(description))];
  if (parameters.length) parts.push(el("h3", {}, t("docs-parameters")), parameterTable(parameters));
  if (requestBody) {
    const kinds = Object.keys(requestBody.content).join(", ");
    parts.push(el("h3", {}, t("docs-body")), el("p", {}, withCode(requestBody.description)), el("code", {}, kinds));
  }
  parts.push(el("h3", {}, t("docs-example")), el("pre", { tabindex: 0 }, curl(path, method, requestBody)));
  const example = responses["200"]?.content?.["application/json"]?.example;
  if (example) parts.push(el("pre", { tabindex: 0 }, JSON.stringify(example, null, 2)));
  parts.push(el("h3", {}, t("docs-errors")), errorTable(responses));
  return el("details", { id: operation.operationId }, title, ...parts);
}

/** Converts `names` in backquotes to elements. */
function withCode(text = "") {
  return text.split("`").map((part, number) => (number % 2 ? el("code", {}, part) : part));
}

function parameterTable(parameters) {
  const rows = parameters.map(({ name, in: place, required, schema, description }) => {
    const kind = schema.type ?? (schema.anyOf ?? []).map((each) => each.type).join(" | ");
    const limits = schema.enum ? schema.enum.join(", ") : (schema.default ?? "");
    return [el("code", {}, name), place, required ? t("docs-required") : String(limits), [`${kind}. `, ...withCode(description)]];
  });
  return table(["docs-name", "docs-place", "docs-default", "docs-meaning"], rows);
}

function errorTable(responses) {
  const rows = Object.entries(responses)
    .filter(([status]) => Number(status) >= 400)
    .map(([status, { content }]) => {
      const { code, message } = content["application/json"].example.error;
      return [status, el("code", {}, code), message];
    });
  return table(["docs-status", "docs-code", "docs-meaning"], rows);
}

function table(heads, rows) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, heads.map((key) => el("th", { scope: "col" }, t(key))))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))))),
  );
}

/** Returns a command line that calls an endpoint of this server. */
function curl(path, method, body) {
  const url = `'${location.origin}${path}'`;
  if (method === "get") return `curl ${url}`;
  const json = !("image/jpeg" in (body?.content ?? {}));
  return json ? `curl --json '{"patches": [0, 1], "classes": []}' ${url}` : `curl --data-binary @image.jpg ${url}`;
}

start().catch((error) => byId("docs").append(el("p", { role: "alert" }, error.message)));
