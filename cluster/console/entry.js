/**
 * Shows one record: what it is, what it did, and on which disks it is.
 * @module
 */
import { html, Page, Time, Trouble, number, size } from "./lib.js";

const VALUE_SHOWN = 65_536; // characters; the rest is a download

export class EntryPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.index = Number(props.parameters.get("at")) || 0;
  }

  async load() {
    const entry = await this.ask(`/v1/explain/${this.index}`);
    this.everyMs = entry.replicas.every((/** @type {any} */ each) => each.is_durable) ? 0 : 1000;
    return { entry };
  }

  render() {
    const { entry, problem } = this.state;
    const step = (/** @type {number} */ by, /** @type {string} */ text) => html`<a href="#/entry?at=${this.index + by}">${text}</a>`;
    const head = html`<div class="tools"><h2>Record ${number(this.index)}</h2>
      ${this.index > 1 ? step(-1, "← before") : null} ${step(1, "after →")} <a href="#/log?at=${this.index}">in the log</a></div>`;
    if (!entry) return html`${head}${problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`}`;
    const record = entry.record;
    return html`${head}
      <${Trouble} problem=${problem} />
      <p>${entry.words.join(" ")}</p>
      <div class="charts">
        <section><h2>Copies</h2><table><thead><tr><th>node</th><th>role</th><th>durable</th><th>applied</th></tr></thead>
          <tbody>${entry.replicas.map((/** @type {any} */ each) => html`<tr><td>${each.node}</td><td>${each.role}</td>
            <td>${yes(each.is_durable)}</td><td>${yes(each.is_applied)}</td></tr>`)}</tbody></table>
          ${groups("Consumer groups past it", entry.groups_past)}${groups("Consumer groups before it", entry.groups_before)}</section>
        ${record ? html`<section><h2>Record</h2><dl>${facts(entry, record).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></section>` : null}
      </div>
      ${record && (record.value ?? record.value_b64) !== undefined ? html`<h2>Value</h2><${Value} text=${record.value} b64=${record.value_b64} name="record-${this.index}" />` : null}
      ${record?.changes ? html`<h2>Changes</h2><${Changes} changes=${record.changes} />` : null}`;
  }
}

/** @param {boolean | null | undefined} value */
function yes(value) {
  return value === undefined || value === null ? html`<span class="faint">not known here</span>` : value ? html`<span class="valid">yes</span>` : html`<span class="unknown">not yet</span>`;
}

/** @param {string} title @param {string[] | undefined} names */
function groups(title, names) {
  return names?.length ? html`<p>${title}: ${names.map((each) => html`<code>${each}</code> `)}</p>` : null;
}

/** @param {any} entry @param {any} record @returns {[string, any][]} */
function facts(entry, record) {
  const key = record.key !== undefined ? html`<a href="#/keys?key=${encodeURIComponent(record.key)}">${record.key}</a>` : record.key_b64;
  const all = [
    ["time", html`<${Time} ms=${record.time_ms} day />`], ["term", number(record.term)], ["kind", record.operation || record.kind],
    ["result", record.result], ["key", key], ["revision", record.revision && number(record.revision)],
    ["version of the key", record.version && number(record.version)],
    ["version before it", record.prior_index ? html`<a href="#/entry?at=${record.prior_index}">record ${number(record.prior_index)}</a>` : undefined],
    ["session", record.session && `${record.session}, sequence ${record.sequence}`],
    ["headers", record.headers?.map((/** @type {any} */ each) => each.join(": ")).join(", ")],
    ["entry", entry.entry_first && `records ${number(entry.entry_first)} to ${number(entry.entry_last)}, ${size(entry.entry_bytes)}`],
  ];
  return /** @type {any} */ (all.filter(([, value]) => value !== undefined && value !== null && value !== 0));
}

/** A value as text, as JSON with indents where it is JSON, or as bytes. @param {any} props */
export function Value({ text, b64, name }) {
  const whole = text ?? atob(b64);
  let shown = text !== undefined ? pretty(text) : hex(whole);
  const cut = shown.length > VALUE_SHOWN;
  if (cut) shown = shown.slice(0, VALUE_SHOWN);
  const bytes = text !== undefined ? new TextEncoder().encode(text) : Uint8Array.from(whole, (each) => each.charCodeAt(0));
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes]));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return html`<div class="value" tabindex="0" role="region" aria-label="Value of ${name.replace("-", " ")}"><pre>${shown}${cut ? "…" : ""}</pre></div>
    <p class="faint">${size(bytes.length)}${cut ? ", cut here" : ""} <button type="button" onClick=${save}>Download</button></p>`;
}

/** @param {string} text */
function pretty(text) {
  if (text.length > VALUE_SHOWN || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {string} bytes */
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, VALUE_SHOWN / 4); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const codes = part.map((each) => each.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${part.map((each) => (each > " " && each <= "~" ? each : ".")).join("")}`);
  }
  return lines.join("\n");
}

/** @param {any} props */
function Changes({ changes }) {
  return html`<table><thead><tr><th>key</th><th>version</th><th>value</th></tr></thead><tbody>${changes.slice(0, 200).map((/** @type {any} */ each) => html`
    <tr><td>${each.key ?? each.key_b64}</td><td class="n">${each.version}</td><td>${each.deleted ? html`<span class="unknown">deleted</span>` : (each.value ?? each.value_b64 ?? "").slice(0, 200)}</td></tr>`)}</tbody></table>`;
}
