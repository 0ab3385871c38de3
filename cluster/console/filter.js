/**
 * Finds the records of a filter: it reads the log in bounded steps from where one stands, backwards and forwards.
 * @module
 */
import { html, Page, Trouble, number } from "./lib.js";
import { lacks } from "./action.js";

const STEP = 1000; // records looked at with one request
const FOUND_STEP = 100; // found records after which the search waits for its reader
const FOUND_MAX = 2000;
const FILTERS = ["operation", "prefix", "session", "user", "import", "header"];
const OPERATIONS = ["append", "put", "delete", "delete_range", "txn", "compact", "session_open", "session_keepalive", "session_close", "void", "trim",
  "digest_point", "consumer", "access", "noop", "configuration", "clock"];

/** The filter of an address: its parameters without those that are empty. @param {URLSearchParams} parameters @returns {Record<string, string>} */
export function filterOf(parameters) {
  return Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name) || ""]).filter(([, text]) => text));
}

/** Bytes of a text as a string with a character for each. @param {string} text */
const binary = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/** Whether a record passes. @param {any} record @param {Record<string, string>} filter @param {Set<number>} sessions of the imports */
export function passes(record, filter, sessions) {
  if (filter.operation && filter.operation !== (record.operation || record.kind)) return false;
  const begins = (/** @type {any} */ each) => (each.key !== undefined ? each.key.startsWith(filter.prefix) : each.key_b64 !== undefined && atob(each.key_b64).startsWith(binary(filter.prefix)));
  if (filter.prefix && ![record, ...(record.changes || [])].some(begins)) return false;
  if (filter.session && Number(filter.session) !== record.session) return false;
  if (filter.user && filter.user !== record.principal) return false;
  if (filter.import && !sessions.has(record.session)) return false;
  if (!filter.header) return true;
  const [name, ...rest] = filter.header.split("=");
  return (record.headers || []).some(([each, text]) => each === name && (!rest.length || text === rest.join("=")));
}

/** The fields of a filter. props: {filter, place: () => number | "" where one stands, onFilter: (filter) => void} */
export function FilterForm({ filter, onFilter }) {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    onFilter(Object.fromEntries(FILTERS.map((name) => [name, event.target.elements[name].value.trim()]).filter(([, text]) => text)));
  };
  const field = (/** @type {string} */ name, /** @type {string} */ label, hint = "") => html`<label>${label}
    <input type="text" name=${name} defaultValue=${filter[name] || ""} placeholder=${hint} size="13" /></label>`;
  return html`<details class="filter" open=${Object.keys(filter).length > 0}><summary>Filter</summary><form class="tools" onSubmit=${submit}>
    <label>Operation <select name="operation"><option value="">any</option>${OPERATIONS.map((each) => html`
      <option value=${each} selected=${filter.operation === each}>${each.replaceAll("_", " ")}</option>`)}</select></label>
    ${field("prefix", "Key begins with")}${field("session", "Session", "number")}${field("user", "User")}${field("import", "Import", "file name")}${field("header", "Header", "name=text")}
    <button type="submit">Search</button>${Object.keys(filter).length ? html`<button type="button" onClick=${() => onFilter({})}>No filter</button>` : null}
  </form></details>`;
}

/** What a filter finds. props: {filter, place: index to begin at (0: the end), oldest, last, row: draws a record, head: over them, me} */
export class Search extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = 0;
    this.low = this.high = props.place ? Math.max(props.oldest, Math.min(props.place, props.last + 1)) : props.last + 1; // looked at: from low, before high
    /** @type {any[]} */
    this.found = [];
    /** @type {object | null} the search under way; another one, or none, ends it */
    this.running = null;
    /** @type {Set<number> | null} */
    this.sessions = null;
    this.hidden = 0; // records that this user may not see
  }

  async load() {
    if (this.low === this.high) setTimeout(() => this.search(this.high > this.props.last));
    return {};
  }

  /** The sessions of the imports that the filter names. */
  async imports() {
    const { filter } = this.props;
    if (!filter.import) return new Set();
    const sessions = new Set();
    let more = "";
    do {
      const listed = await this.ask(`/v1/kv?prefix=raftlog/import/&limit=500&consistency=stale${more}`);
      const named = listed.kvs.filter((/** @type {any} */ each) => (each.value || "").includes(`"source":${JSON.stringify(filter.import).slice(0, -1)}`));
      for (const each of named) sessions.add(Number(each.key.slice("raftlog/import/".length)));
      more = listed.continuation ? `&continuation=${encodeURIComponent(listed.continuation)}` : "";
    } while (more);
    if (!sessions.size) throw new Error(`No import of ${filter.import} is known. The names of imports stand in the keys with the prefix raftlog/import/`);
    return sessions;
  }

  /** The records of [from, to). @param {number} from @param {number} to */
  async read(from, to) {
    const records = [];
    while (from < to) {
      const page = await this.ask(`/v1/log?from=${from}&to=${to}&limit=${STEP}&internal=true&value_bytes=100&consistency=stale`);
      if (page.next <= from) break;
      records.push(...page.records);
      from = page.next;
    }
    return records;
  }

  /** @param {boolean} backwards */
  async search(backwards) {
    const run = (this.running = {});
    const begin = this.found.length;
    this.setState({ problem: null });
    try {
      this.sessions ??= await this.imports();
      while (this.running === run && this.found.length - begin < FOUND_STEP && this.found.length < FOUND_MAX && !document.hidden) {
        const { oldest, last, filter } = this.props;
        const [from, to] = backwards ? [Math.max(oldest, this.low - STEP), this.low] : [this.high, Math.min(this.high + STEP, last + 1)];
        if (from >= to) break;
        const records = await this.read(from, to);
        this.hidden += to - from - records.length;
        const hits = records.filter((each) => passes(each, filter, /** @type {any} */ (this.sessions)));
        this.found = backwards ? [...hits, ...this.found] : [...this.found, ...hits];
        if (backwards) this.low = from;
        else this.high = to;
        this.setState({});
      }
    } catch (problem) {
      if (!this.gone.signal.aborted) this.setState({ problem });
    }
    if (this.running === run) this.running = null;
    this.setState({});
  }

  stop() {
    this.running = null;
    this.setState({});
  }

  componentWillUnmount() {
    this.running = null;
    super.componentWillUnmount();
  }

  render() {
    const { oldest, last, row, head, filter, me } = this.props;
    const missing = filter.user && lacks(me, "operate on cluster");
    const [found, range] = [this.found.length, `${number(this.low)} to ${number(this.high - 1)}`];
    const words = this.low === this.high ? "Nothing is looked at yet." : found || this.running ? `Looked at ${range}: ${number(found)} found.` : `Nothing from ${range}.`;
    const button = (/** @type {boolean} */ backwards, /** @type {string} */ text, /** @type {boolean} */ more) => html`
      <button type="button" disabled=${!more || found >= FOUND_MAX || this.running} onClick=${() => this.search(backwards)}>${text}</button>`;
    return html`<div class="tools"><span role="status">${words}${found >= FOUND_MAX ? " More do not fit: name more in the filter." : ""}</span>
        ${button(true, "Earlier", this.low > oldest)}${button(false, "Later", this.high <= last)}
        ${this.running ? html`<button type="button" onClick=${() => this.stop()}>Stop</button>` : null}</div>
      <${Trouble} problem=${this.state.problem} />
      ${missing ? html`<p class="unknown">Not permitted to see who wrote a record. The missing grant: <code>${missing}</code></p>` : null}
      ${this.hidden ? html`<p class="unknown">${number(this.hidden)} of them are hidden from this user: they name keys that it may not read, or the members.</p>` : null}
      ${this.found.length ? head : null}
      <div class="list found" tabindex="0" role="region" aria-label="Found records">${this.found.map(row)}</div>`;
  }
}
