/**
 * Finds the records of a filter: it reads the log in bounded steps from where one stands, backwards and forwards.
 * @module
 */
import { html, PAGE_BYTES, Page, Trouble, number } from "./lib.js";

const STEP_MIN = 1000; // records looked at with one request, doubled
const STEP_MAX = 64_000; // while few are found
const FOUND_STEP = 100; // found records after which the search waits for its reader
const FOUND_MAX = 2000;
const FILTERS = ["operation", "prefix", "session", "user", "import", "header"];
const OPERATIONS = ["append", "put", "delete", "delete_range", "txn", "compact", "session_open", "session_keepalive", "session_close", "void", "trim",
  "digest_point", "consumer", "access", "noop", "configuration", "clock"];

/** The filter of an address: its parameters without those that are empty. @param {URLSearchParams} parameters @returns {Record<string, string>} */
export function filterOf(parameters) {
  return Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name) || ""]).filter(([, text]) => text));
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
    /** @type {string | null} those of the filter, with commas between them */
    this.sessions = null;
    this.step = STEP_MIN;
  }

  async load() {
    if (this.low === this.high) setTimeout(() => this.search(this.high > this.props.last));
    return {};
  }

  /** The sessions of the filter, and of the imports that it names. */
  async imports() {
    const { filter } = this.props;
    if (!filter.import) return filter.session || "";
    const sessions = [];
    let more = "";
    do {
      const listed = await this.ask(`/v1/kv?prefix=raftlog/import/&limit=500&consistency=stale${more}`);
      const named = listed.kvs.filter((/** @type {any} */ each) => (each.value || "").includes(`"source":${JSON.stringify(filter.import).slice(0, -1)}`));
      for (const each of named) sessions.push(Number(each.key.slice("raftlog/import/".length)));
      more = listed.continuation ? `&continuation=${encodeURIComponent(listed.continuation)}` : "";
    } while (more);
    if (!sessions.length) throw new Error(`No import of ${filter.import} is known. The names of imports stand in the keys with the prefix raftlog/import/`);
    return (filter.session ? sessions.filter((each) => each === Number(filter.session)) : sessions).join(",") || "9007199254740991"; // of no import
  }

  /** The records of [from, to) that pass. @param {number} from @param {number} to */
  async read(from, to) {
    const { operation, prefix, user, header } = this.props.filter;
    const wanted = Object.entries({ operation, prefix, user, header, session: this.sessions }).filter(([, text]) => text).map(([name, text]) => `&${name}=${encodeURIComponent(text)}`).join("");
    const records = [];
    while (from < to) {
      const page = await this.ask(`/v1/log?from=${from}&to=${to}&limit=${STEP_MIN}&page_bytes=${PAGE_BYTES}&internal=true&value_bytes=100&consistency=stale${wanted}`);
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
        const { oldest, last } = this.props;
        const [from, to] = backwards ? [Math.max(oldest, this.low - this.step), this.low] : [this.high, Math.min(this.high + this.step, last + 1)];
        if (from >= to) break;
        const hits = await this.read(from, to);
        this.step = hits.length ? STEP_MIN : Math.min(this.step * 2, STEP_MAX);
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
    const { oldest, last, row, head, me } = this.props;
    const seesAll = !me?.is_on || ["read on log", "read on keys:*", "read on groups:*"].every((each) => me.grants.includes(each));
    const [found, range] = [this.found.length, `${number(this.low)} to ${number(this.high - 1)}`];
    const words = this.low === this.high ? "Nothing is looked at yet." : found || this.running ? `Looked at ${range}: ${number(found)} found.` : `Nothing from ${range}.`;
    const button = (/** @type {boolean} */ backwards, /** @type {string} */ text, /** @type {boolean} */ more) => html`
      <button type="button" disabled=${!more || found >= FOUND_MAX || this.running} onClick=${() => this.search(backwards)}>${text}</button>`;
    return html`<div class="tools"><span role="status">${words}${found >= FOUND_MAX ? " More do not fit: name more in the filter." : ""}</span>
        ${button(true, "Earlier", this.low > oldest)}${button(false, "Later", this.high <= last)}
        ${this.running ? html`<button type="button" onClick=${() => this.stop()}>Stop</button>` : null}</div>
      <${Trouble} problem=${this.state.problem} />
      ${seesAll ? null : html`<p class="unknown">Looked at are the records that this user may see: those whose keys and groups it may read.</p>`}
      ${this.found.length ? head : null}
      <div class="list found" tabindex="0" role="region" aria-label="Found records">${this.found.map(row)}</div>`;
  }
}
