"use strict";
// Renders the OpenAPI document of this server and sends requests to it; it asks nobody else.

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const resolve = (schema, whole) =>
  schema && schema.$ref ? schema.$ref.slice(2).split("/").reduce((part, key) => part[key], whole) : schema;

const field = (name, input, hint) => {
  const label = make("label", { className: "field" }, name, " ");
  if (hint) label.append(make("span", { className: "hint", textContent: hint }));
  label.append(make("br"), input);
  return label;
};

const send = async (request, output) => {
  output.replaceChildren("…");
  const began = performance.now();
  const token = document.getElementById("token").value;
  const headers = { ...request.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    const reply = await fetch(request.address, { method: request.method, headers, body: request.body });
    const type = (reply.headers.get("content-type") || "").split(";")[0];
    const line = make("p", { textContent: `${reply.status} ${type}, ${Math.round(performance.now() - began)} ms` });
    if (reply.ok && type.startsWith("image/")) {
      const url = URL.createObjectURL(await reply.blob());
      output.replaceChildren(line, make("img", { src: url, alt: "the image of this item" }));
      return;
    }
    const text = await reply.text();
    const shown = type.endsWith("json") && text ? JSON.stringify(JSON.parse(text), null, 2) : text;
    output.replaceChildren(line, make("pre", { textContent: shown }));
  } catch (error) {
    output.replaceChildren(make("p", { textContent: `No reply: ${error.message}` }));
  }
};

const filled = (address, places) =>
  address.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(places[name].value));

const formTrial = (about, target, whole, output) => {
  const schema = resolve(about.schema, whole);
  const form = make("form");
  for (const [name, raw] of Object.entries(schema.properties || {})) {
    const property = resolve(raw, whole);
    const isFile = property.format === "binary";
    const hint = property.description || (isFile ? "image" : property.type || "");
    form.append(field(name, make("input", { name, type: isFile ? "file" : "text" }), hint));
  }
  form.append(make("button", { textContent: "Send form" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const body = new FormData();
    for (const input of form.elements) {
      if (!input.name) continue;
      if (input.type === "file" && input.files.length) body.append(input.name, input.files[0]);
      else if (input.type === "text" && input.value !== "") body.append(input.name, input.value);
    }
    send({ ...target(), body }, output);
  });
  return form;
};

const jsonTrial = (about, target, output) => {
  const text = make("textarea", { rows: 8, value: JSON.stringify(about.example || {}, null, 2) });
  const button = make("button", { textContent: "Send JSON", type: "button" });
  button.addEventListener("click", () =>
    send({ ...target(), body: text.value, headers: { "Content-Type": "application/json" } }, output));
  return make("div", {}, field("JSON", text), button);
};

const operation = (address, method, about, whole) => {
  const title = make("summary", {}, make("span", { className: "method", textContent: method.toUpperCase() }),
    make("code", { textContent: address }), ` ${about.summary || ""}`);
  const output = make("div", { ariaLive: "polite" });
  const places = {};
  const body = make("div", {}, make("p", { textContent: about.description || "" }));
  for (const parameter of about.parameters || []) {
    const examples = parameter.examples || parameter.schema.examples || [""];
    places[parameter.name] = make("input", { type: "text", value: Object.values(examples)[0] });
    body.append(field(parameter.name, places[parameter.name], parameter.description));
  }
  const target = () => ({ address: filled(address, places), method: method.toUpperCase() });
  const content = (about.requestBody || {}).content || {};
  if (content["multipart/form-data"]) body.append(formTrial(content["multipart/form-data"], target, whole, output));
  if (content["application/json"]) body.append(jsonTrial(content["application/json"], target, output));
  if (!about.requestBody) {
    const button = make("button", { textContent: "Send", type: "button" });
    button.addEventListener("click", () => send(target(), output));
    body.append(button);
  }
  const replies = make("table");
  for (const [status, reply] of Object.entries(about.responses))
    replies.append(make("tr", {}, make("td", { textContent: status }), make("td", { textContent: reply.description })));
  body.append(output, make("h4", { textContent: "Replies" }), replies);
  return make("details", {}, title, body);
};

const start = async () => {
  const list = document.getElementById("operations");
  try {
    const whole = await (await fetch("/openapi.json")).json();
    document.getElementById("about").textContent = whole.info.description;
    list.replaceChildren();
    for (const [address, methods] of Object.entries(whole.paths))
      for (const [method, about] of Object.entries(methods)) list.append(operation(address, method, about, whole));
    list.append(make("h2", { textContent: "Schemas" }));
    for (const [name, schema] of Object.entries(whole.components.schemas))
      list.append(make("details", {}, make("summary", { textContent: name }),
        make("pre", { textContent: JSON.stringify(schema, null, 2) })));
  } catch (error) {
    list.replaceChildren(make("p", { textContent: `The OpenAPI document cannot be read: ${error.message}` }));
  }
};

start();
