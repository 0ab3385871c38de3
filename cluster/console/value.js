/**
 * Shows the bytes of a value as text, JSON, a row of CSV, msgpack or hex. Nothing that they hold acts on the page.
 * @module
 */
import { html, Component, save, size } from "./lib.js";
import { msgpack } from "./msgpack.js";

export const FORMS = ["text", "JSON", "CSV", "msgpack", "hex"];
/** Most bytes of a value that a page asks for; the rest is a download. */
export const VALUE_BYTES = 65_536;
const DEPTH_MAX = 100; // of JSON with indents: deeper has more spaces than text
const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Text in which control characters and marks of direction can be seen. @param {string} text */
export function visible(text) {
  return text.replace(HIDDEN, (each) => `⟨U+${each.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** The bytes of a field that the API has as text or base64. @param {string | undefined} text @param {string | undefined} b64 */
export function bytesOf(text, b64) {
  return text !== undefined ? new TextEncoder().encode(text) : Uint8Array.from(atob(b64 || ""), (each) => each.charCodeAt(0));
}

/** A key for people, in one line. @param {{key?: string, key_b64?: string}} of */
export function keyText({ key, key_b64 }) {
  return key !== undefined ? visible(key) : key_b64 !== undefined ? `base64 ${key_b64}` : "";
}

/** The parameter that names a key. No path: a browser shortens `..` there. @param {{key?: string, key_b64?: string}} of */
export function keyQuery({ key, key_b64 }) {
  return key !== undefined ? `key=${encodeURIComponent(key)}` : `key_b64=${encodeURIComponent(key_b64 || "")}`;
}

/** The tokens of a JSON object or array, or null if the text is none, or is deeper than a page shows. @param {string} text */
export function jsonTokens(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  const tokens = text.match(TOKEN) || [];
  let depth = 0;
  for (const token of tokens) {
    if (token === "{" || token === "[") depth++;
    if (token === "}" || token === "]") depth--;
    if (depth > DEPTH_MAX) return null;
  }
  try {
    JSON.parse(text);
    return tokens;
  } catch {
    return null;
  }
}

/** JSON with indents, its numbers and names as they are written. @param {string[]} tokens */
function indented(tokens) {
  let [text, depth] = ["", 0];
  tokens.forEach((token, at) => {
    const opens = token === "{" || token === "[";
    const closes = token === "}" || token === "]";
    const isEmpty = closes && /[{[]/.test(tokens[at - 1]) && tokens[at - 1].length === 1;
    if (closes) depth--;
    if ((closes && !isEmpty) || (!closes && at && /^[{[,]$/.test(tokens[at - 1]))) text += `\n${"  ".repeat(depth)}`;
    text += token === ":" ? ": " : token;
    if (opens) depth++;
  });
  return text;
}

/** The cells of the first row of CSV. @param {string} text @param {string} [delimiter] guessed if it is not given */
export function cells(text, delimiter = [",", ";", "\t", "|"].find((each) => text.includes(each)) || ",") {
  const found = [];
  let [cell, quoted] = ["", false];
  for (let at = 0; at < text.length; at++) {
    const each = text[at];
    if (quoted && each === '"' && text[at + 1] === '"') cell += text[at++];
    else if (each === '"') quoted = !quoted;
    else if (!quoted && each === delimiter) [cell] = ["", found.push(cell)];
    else if (!quoted && each === "\n") break;
    else cell += each;
  }
  return [...found, cell.replace(/\r$/, "")];
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, VALUE_BYTES / 4); at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const codes = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${part.map((each) => (each > 32 && each < 127 ? String.fromCharCode(each) : ".")).join("")}`);
  }
  return lines.join("\n");
}

/** The value in this form, or null if it is not of that form. @param {string} form @param {string | undefined} text @param {Uint8Array} bytes @param {any} [schema] */
export function shownAs(form, text, bytes, schema) {
  if (form === "hex") return hex(bytes);
  if (form === "msgpack") return msgpack(bytes) && visible(String(msgpack(bytes)));
  if (text === undefined) return form === "text" ? visible(new TextDecoder().decode(bytes)) : null;
  if (form === "text") return visible(text);
  if (form === "CSV") {
    const [row, names] = [cells(text, schema?.dialect?.delimiter), schema?.columns || []];
    return row.length < 2 ? null : row.map((each, at) => visible(`${names[at]?.name || `c${at + 1}`}: ${each}`)).join("\n");
  }
  const tokens = jsonTokens(text);
  return tokens && visible(indented(tokens));
}

/** The form in which a value is shown first. @param {string | undefined} text @param {Uint8Array} bytes @param {any} [schema] */
export function bestForm(text, bytes, schema) {
  if (text === undefined) return bytes.length > 1 && bytes[0] >= 0x80 && msgpack(bytes) !== null ? "msgpack" : "hex";
  return schema?.values === "csv" ? "CSV" : jsonTokens(text) ? "JSON" : "text";
}

/** A value in one line of a list. @param {any} record @param {string} form one of FORMS, or "" */
export function oneLine(record, form) {
  const { value: text, value_b64: b64, value_bytes: whole } = record;
  if (text === undefined && b64 === undefined) return record.changes ? `${record.changes.length} changes` : "";
  const more = whole === undefined ? "" : `… (${size(whole)})`;
  if (!form && text !== undefined) return visible(text.slice(0, 300)) + more;
  const bytes = bytesOf(text, b64).subarray(0, 300);
  if (form === "hex" || (!form && text === undefined)) return [...bytes.subarray(0, 64)].map((each) => each.toString(16).padStart(2, "0")).join(" ") + more;
  const shown = shownAs(form, text, bytes);
  return shown === null ? `not ${form}${more && ", or cut"}` : shown.replace(/\s*\n\s*/g, form === "CSV" ? " │ " : " ") + more;
}

/**
 * A value, the choice of its form, and a download. props: {text, b64, whole: bytes of the whole value if this is its
 * start, name of the file, load: () => Promise<Uint8Array> of the whole value, schema of its import}
 */
export class Value extends Component {
  render() {
    const { text, b64, whole, name, load, schema } = /** @type {any} */ (this.props);
    const bytes = bytesOf(text, b64);
    const best = bestForm(text, bytes, schema);
    const chosen = /** @type {any} */ (this.state).form || best;
    const shown = shownAs(chosen, text, bytes, schema);
    const cut = whole !== undefined || (chosen === "hex" && bytes.length > VALUE_BYTES / 4);
    const download = async () => {
      try {
        save(name, [whole === undefined ? bytes : await load()]);
      } catch (problem) {
        this.setState({ problem });
      }
    };
    return html`<div class="value" tabindex="0" role="region" aria-label="Value of ${name.replace("-", " ")}"><pre>${shown ?? `It is not ${chosen}.`}${cut ? "…" : ""}</pre></div>
      <p class="forms faint"><span role="group" aria-label="Form of the value of ${name.replace("-", " ")}">${FORMS.map((form) => html`<button type="button" aria-pressed=${form === chosen}
        onClick=${() => this.setState({ form })}>${form}</button>`)}</span>
        ${size(whole ?? bytes.length)}${cut ? ", cut here" : ""}${chosen === "text" && text === undefined ? ", not UTF-8" : ""}
        <button type="button" onClick=${download}>Download</button>
        <span class="trouble" role="alert">${/** @type {any} */ (this.state).problem?.message || ""}</span></p>`;
  }
}
