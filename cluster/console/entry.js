/**
 * Shows one record: what it is, what it changed, its entry in the chain, and on which disks it is.
 * @module
 */
import { html, Page, Time, Trouble, duration, number, size } from "./lib.js";
import { Diff } from "./diff.js";
import { VALUE_BYTES, Value, bytesOf, keyQuery, keyText, visible } from "./value.js";

const CHANGES = 5; // of a transaction, compared by themselves; more with a button
const ROWS = 12; // records of the same entry

export class EntryPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.at = props.parameters.get("at") || "";
    this.index = Number(this.at);
    this.shown = CHANGES;
  }

  async load() {
    this.everyMs = 0;
    const entry = await this.ask(`/v1/explain/${encodeURIComponent(this.at)}?value_bytes=${VALUE_BYTES}`).catch((problem) => {
      if (problem.code === "future_index") this.everyMs = 1000;
      throw problem;
    });
    const isDone = entry.replicas.every((/** @type {any} */ each) => each.is_durable) || entry.replicas.every((/** @type {any} */ each) => each.is_durable === undefined || each.node === entry.node);
    if (!isDone) this.everyMs = 1000;
    if (entry.record && !this.state.entry?.record) setTimeout(() => this.more(entry));
    return { entry };
  }

  /** Asks what belongs to the record, once: what it changed, the entries beside its own, its records, its import. @param {any} entry */
  async more(entry) {
    const { record } = entry;
    const optional = (/** @type {string} */ path) => this.ask(path).catch((problem) => ({ problem }));
    const beside = (/** @type {number} */ index) => (index < 1 ? {} : optional(`/v1/explain/${index}?value_bytes=0`));
    const first = Math.max(entry.entry_first, Math.min(this.index - ROWS / 2, entry.entry_last - ROWS + 1));
    const [before, after, rows, schema] = /** @type {any[]} */ (await Promise.all([
      beside(entry.entry_first - 1), beside(entry.entry_last + 1),
      entry.entry_last > entry.entry_first ? optional(`/v1/log?from=${first}&to=${Math.min(first + ROWS, entry.entry_last + 1)}&internal=true&value_bytes=100&consistency=stale`) : {},
      record.session ? optional(`/v1/kv?prefix=raftlog/import/${String(record.session).padStart(20, "0")}&limit=1&consistency=stale`) : {},
    ]));
    this.setState({ before, after, rows: rows.records || [], schema: schemaOf(schema.kvs?.[0]?.value) });
    await this.compare();
  }

  /** Asks for the values before and after of the keys that the record changed, as many as are shown. */
  async compare() {
    const { record } = this.state.entry;
    const changed = (record.changes || (record.version === undefined ? [] : [record])).slice(0, this.shown);
    /** @type {any[]} */
    const effects = this.state.effects || [];
    for (const change of changed.slice(effects.length)) {
      const found = await this.ask(`/v1/kv?${keyQuery(change)}&versions=2&from=${this.index}&value_bytes=${VALUE_BYTES}&consistency=stale`).catch((problem) => ({ problem }));
      effects.push({ change, problem: found.problem, after: found.versions?.[0], before: found.versions?.[1], ends: found.ends });
      this.setState({ effects });
    }
  }

  render() {
    const { entry, problem } = this.state;
    const asOf = this.props.parameters.get("as_of");
    const step = (/** @type {number} */ by, /** @type {string} */ text) => html`<a href="#/entry?at=${this.index + by}">${text}</a>`;
    const head = html`<div class="tools"><h2>Record ${Number.isSafeInteger(this.index) ? number(this.index) : visible(this.at)}</h2>
      ${this.index > 1 && Number.isSafeInteger(this.index) ? step(-1, "← before") : null} ${entry ? step(1, "after →") : null} <a href="#/log?at=${encodeURIComponent(this.at)}">in the log</a>
      ${entry?.record ? html` <a href="#/keys?as_of=${this.index}">the keys as of it</a>` : null}</div>`;
    if (!entry) {
      return html`${head}${problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />
        ${problem.answer?.oldest ? html`<p>The oldest record that can be read is <a href="#/entry?at=${problem.answer.oldest}">${number(problem.answer.oldest)}</a>.</p>` : html`<p><a href="#/log">The log</a> lists the records that there are.</p>`}` : html`<p class="faint">Asking the node …</p>`}`;
    }
    const { record } = entry;
    return html`${head}
      <${Trouble} problem=${problem} />
      ${asOf && this.index > Number(asOf) ? html`<p class="unknown">This record came after the moment that you look at.</p>` : null}
      <p>${entry.words.join(" ")}</p>
      <div class="parts">
        ${record ? html`<section><h2>Record</h2><dl>${this.facts(entry, record).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></section>` : null}
        <section><h2>Copies${asOf ? html` <span class="faint">now</span>` : null}</h2><table><thead><tr><th>node</th><th>role</th><th>durable</th><th>applied</th></tr></thead>
          <tbody>${entry.replicas.map((/** @type {any} */ each) => html`<tr><td>${each.node}</td><td>${each.role}</td>
            <td>${yes(each.is_durable)}</td><td>${yes(each.is_applied)}</td></tr>`)}</tbody></table>
          ${groups("Past it", entry.groups_past)}${groups("Before it", entry.groups_before)}</section>
      </div>
      ${record && (record.value ?? record.value_b64) !== undefined ? html`<h2>Value</h2><${Value} text=${record.value} b64=${record.value_b64} whole=${record.value_bytes}
        schema=${this.state.schema} name="record-${this.index}" load=${() => this.whole()} />` : null}
      ${record ? this.effects(record) : null}
      ${record ? this.chain(entry) : null}`;
  }

  async whole() {
    const page = await this.ask(`/v1/log?from=${this.index}&to=${this.index + 1}&internal=true&encoding=base64&consistency=stale`);
    return bytesOf(undefined, page.records[0].value_b64);
  }

  /** @param {any} entry @param {any} record @returns {[string, any][]} */
  facts(entry, record) {
    const { schema } = this.state;
    const headers = record.headers || record.headers_b64?.map(([name, text]) => [name, `base64 ${text}`]);
    const all = [
      ["written", html`<${Time} ms=${record.time_ms} day />`], ["time of the client", record.client_time_ms && html`<${Time} ms=${record.client_time_ms} day />`],
      ["kind", record.operation ? record.operation.replaceAll("_", " ") : record.kind], ["result", record.result.replaceAll("_", " ")],
      ["user", record.principal], ["term", number(record.term)],
      ["key", (record.key ?? record.key_b64) !== undefined && (/^(put|delete|append)$/.test(record.operation) ? html`<a href="#/keys?${keyQuery(record)}"><bdi>${keyText(record)}</bdi></a>` : keyText(record))],
      ["revision", record.revision && number(record.revision)], ["version of the key", record.version && number(record.version)],
      ["version before it", record.prior_index && html`<a href="#/entry?at=${record.prior_index}">record ${number(record.prior_index)}</a>`],
      ["session", record.session && html`<a href="#/entry?at=${record.session}">${number(record.session)}</a>, sequence ${number(record.sequence)}, ${""}
        <a href="#/log?at=${this.index}&session=${record.session}">its records</a>`],
      ["import", schema && html`<a href="#/log?at=${this.index}&import=${encodeURIComponent(schema.source)}">${visible(schema.source)}</a>`],
      ["headers", headers?.length && headers.map(([name, text]) => html`<div><bdi>${visible(name)}: ${visible(text)}</bdi></div>`)],
    ];
    return /** @type {any} */ (all.filter(([, value]) => value));
  }

  /** What the record changed, with the difference of each key. @param {any} record */
  effects(record) {
    const { effects = [] } = this.state;
    const count = record.changes ? record.changes.length : record.version === undefined ? 0 : 1;
    if (!count) return record.operation === "append" ? null : html`<h2>Effect</h2><p class="faint">It changed no key.</p>`;
    const more = () => {
      this.shown += CHANGES;
      this.compare();
    };
    return html`<h2>Effect</h2>${effects.map((/** @type {any} */ each) => html`<section key=${keyQuery(each.change)}>
        <p class="version"><b><a href="#/keys?${keyQuery(each.change)}&from=${this.index}"><bdi>${keyText(each.change)}</bdi></a></b>
          ${each.after?.deleted ? html`<span class="unknown">deleted</span>` : each.after ? html`<span class="faint">version ${number(each.after.version)}</span>` : null}
          ${each.before ? html`<a href="#/entry?at=${each.before.index}">before: record ${number(each.before.index)}</a>` : null}</p>
        ${each.problem ? html`<${Trouble} problem=${each.problem} />` : !each.before && each.ends === "trimmed" ? html`<p class="faint">The record of the version before is trimmed.</p>`
          : html`<${Diff} of=${keyText(each.change).slice(0, 300)} before=${each.before} after=${each.after} brief=${each.change === record} />`}</section>`)}
      ${effects.length < Math.min(count, this.shown) ? html`<p class="faint">Asking for the versions …</p>` : count > this.shown ? html`<p><button type="button" onClick=${more}>${number(count - this.shown)} more keys</button></p>` : null}`;
  }

  /** The entry between its neighbours: each names the CRC of the header before it. @param {any} entry */
  chain(entry) {
    const { before, after, rows = [] } = this.state;
    const box = (/** @type {string} */ title, /** @type {any} */ of, /** @type {string} */ none) => html`<div class="link ${of === entry ? "own" : ""}"><b>${title}</b>
      ${of?.entry_first ? html`<span><a href="#/entry?at=${of.entry_first}">${number(of.entry_first)}</a>${of.entry_last > of.entry_first ? ` to ${number(of.entry_last)}` : ""}, ${size(of.entry_bytes)}</span>
        <span class="faint">names <code>${of.previous_crc ?? "–"}</code></span><span class="faint">CRC <code>${of.entry_crc ?? "–"}</code></span>` : html`<span class="faint">${none}</span>`}</div>`;
    const joint = (/** @type {any} */ one, /** @type {any} */ other) => (!one?.entry_crc || !other?.entry_crc ? html`<span class="faint">–</span>`
      : one.entry_crc === other.previous_crc ? html`<span class="valid">= fits</span>` : html`<span class="invalid">≠ does not fit</span>`);
    return html`<h2>Entry</h2><p class="faint">Records that were written together are one entry. Its header names the CRC of the entry before. Clock of the cluster: ${duration(entry.clock_ms)}.</p>
      <div class="chain">${box("before", before, this.index === 1 ? "the log begins here" : "not readable")}${joint(before, entry)}${box("this entry", entry, "")}${joint(entry, after)}${box("after", after, "none yet")}</div>
      ${rows.length ? html`<div class="wide" tabindex="0" role="region" aria-label="Records of the entry"><table><tbody>${rows.map((/** @type {any} */ each) => html`<tr class=${each.index === this.index ? "own" : ""}>
        <td class="n"><a href="#/entry?at=${each.index}">${number(each.index)}</a></td><td class="faint">${each.operation}</td><td><bdi>${keyText(each)}</bdi></td>
        <td><bdi>${visible((each.value ?? each.value_b64 ?? "").slice(0, 100))}</bdi></td></tr>`)}</tbody></table></div>` : null}`;
  }
}

/** The schema of an import, if the text is one. @param {string | undefined} text */
function schemaOf(text) {
  try {
    return text && JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {boolean | null | undefined} value */
function yes(value) {
  return value === undefined || value === null ? html`<span class="faint">not known here</span>` : value ? html`<span class="valid">yes</span>` : html`<span class="unknown">not yet</span>`;
}

/** Consumer groups; a sink's group is named by it. @param {string} title @param {string[] | undefined} names */
function groups(title, names) {
  return names?.length ? html`<p>${title}: ${names.map((each) => html`<a class="chip" href="#/groups">${visible(each.replace(/^sink\//, ""))}${each.startsWith("sink/") ? html` <span class="faint">sink</span>` : null}</a> `)}</p>` : null;
}
