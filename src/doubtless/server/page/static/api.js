// The way to /v1. A refusal becomes an ApiError with the server's own sentence; a key that may write lies in the
// session of this tab, and goes with whatever is asked.

const KEY = "doubtless-key";

export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function keptKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function ask(method, address, options = {}) {
  const headers = { Accept: "application/json", ...options.headers };
  if (keptKey()) headers.Authorization = `Bearer ${keptKey()}`;
  let response;
  try {
    response = await fetch(address, { method, headers, body: options.body, signal: options.signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "");
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new ApiError(response.status, problem.detail ?? response.statusText);
  }
  return options.blob ? response.blob() : response.json();
}

/** A GET; `parameters` that are empty are left out. */
export function get(path, parameters = {}, options = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") asked.set(name, value);
  }
  const query = asked.toString();
  return ask("GET", query ? `${path}?${query}` : path, options);
}

export function post(path, body, options = {}) {
  return ask("POST", path, { ...options, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

/** A form of fields and files; several files of one name are several photos. */
export function postForm(path, fields, files, options = {}) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined && value !== null) form.append(name, value);
  }
  for (const [name, blob] of files) form.append(name, blob, "photo");
  return ask("POST", path, { ...options, body: form });
}

/** The picture of an item, as bytes that can be asked with. */
export function picture(address, options = {}) {
  return ask("GET", address, { ...options, blob: true, headers: { Accept: "image/*" } });
}

const item = (id) => `/v1/items/${encodeURIComponent(id)}`;

export const addresses = {
  about: (id) => `${item(id)}/about`,
  image: (id) => `${item(id)}/image`,
  label: (id) => `${item(id)}/label`,
  thumbnail: (id, size) => `${item(id)}/thumbnail?size=${size}`,
};
