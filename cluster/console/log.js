/**
 * Shows the log as a list over any number of records, of which only the visible ones are fetched and drawn.
 * @module
 */
import { html, PAGE_BYTES, Page, Time, Trouble, moment, number } from "./lib.js";
import { FilterForm, Search, filterOf } from "./filter.js";
import { find, momentOf } from "./moment.js";
import { FORMS, keyText, oneLine } from "./value.js";

const ROW = 26; // pixels, as in console.css
const CHUNK = 50; // records in a request
const CHUNKS_KEPT = 40;
const ASKED_MAX = 4; // requests for records at a time
const HEIGHT_MAX = 8_000_000; // pixels that every browser can scroll
const BUCKETS = 120;
const VALUE_BYTES = 200; // of a value in the list

/** Over the list. Drawn anew each time: Preact keeps what it drew in the element. */
const head = () => html`<div class="listhead" aria-hidden="true"><span>index</span><span class="when">time</span><span>kind</span><span>key</span><span>value</span></div>`;

export class LogPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    const { parameters } = props;
    this.asOf = Number(parameters.get("as_of")) || 0;
    this.filter = filterOf(parameters);
    this.state = { top: 0, follows: !parameters.get("at") && !this.asOf, form: parameters.get("form") || "" };
    /** @type {Map<number, {records: any[], next: number, busy: boolean}>} by their first index */
    this.chunks = new Map();
    /** @type {HTMLElement | null} */
    this.box = null;
    this.wanted = Number(parameters.get("at")) || this.asOf;
    if (this.asOf) this.everyMs = 0;
  }

  async load() {
    const until = this.asOf ? `&to_time=${(await momentOf(this, this.props.parameters.get("as_of"))).time_ms + 1}` : "";
    const [status, density] = await Promise.all([
      this.ask("/v1/status"),
      this.state.density && Date.now() < this.state.densityDue ? null : this.ask(`/v1/log/density?buckets=${BUCKETS}&consistency=stale${until}`),
    ]);
    const more = density ? { density, densityDue: Date.now() + 10_000 } : {};
    const last = Math.min(status.applied, this.asOf || Infinity);
    setTimeout(() => this.settle());
    return { oldest: status.oldest, last, seen: this.state.follows ? last : this.state.seen ?? last, ...more };
  }

  /** Goes to the record that the address names, or to the end. */
  settle() {
    if (this.wanted) this.jump(this.wanted);
    else if (this.state.follows && this.box) this.box.scrollTop = this.box.scrollHeight;
    this.wanted = 0;
  }

  get count() {
    return Math.max(0, this.state.last - this.state.oldest + 1);
  }

  get height() {
    return Math.min(HEIGHT_MAX, this.count * ROW);
  }

  /** Pixels of the whole list above the first visible one, where it is taller than a browser can scroll. */
  virtualTop() {
    if (!this.box) return 0;
    const real = this.height - this.box.clientHeight;
    const whole = this.count * ROW - this.box.clientHeight;
    return real > 0 ? (this.state.top / real) * whole : 0;
  }

  /** @param {number} index */
  jump(index) {
    if (!this.box) return;
    const at = Math.max(0, Math.min(this.count - 1, index - this.state.oldest));
    const real = this.height - this.box.clientHeight;
    const whole = this.count * ROW - this.box.clientHeight;
    this.setState({ follows: !this.asOf && index >= this.state.last });
    this.box.scrollTop = whole > 0 ? ((at * ROW) / whole) * real : 0;
  }

  /** Puts filter, form and place into the address. @param {Record<string, string>} filter */
  address(filter) {
    const at = this.state.follows || !this.box ? this.props.parameters.get("at") || "" : Math.floor(this.virtualTop() / ROW) + this.state.oldest;
    const named = { at: this.state.follows ? "" : String(at), form: this.state.form, as_of: this.asOf ? String(this.asOf) : "", ...filter };
    return `#/log?${new URLSearchParams(Object.entries(named).filter(([, text]) => text))}`;
  }

  onScroll() {
    if (!this.box) return;
    this.setState({ top: this.box.scrollTop });
    clearTimeout(this.noted);
    this.noted = setTimeout(() => this.gone.signal.aborted || history.replaceState(history.state, "", this.address(this.filter)), 300);
  }

  /** Lets the list stand still; what comes is counted. */
  pause() {
    if (this.state.follows) this.setState({ follows: false, seen: this.state.last });
  }

  /** @param {number} first */
  async fetchChunk(first) {
    const chunk = this.chunks.get(first) || { records: [], next: Math.max(first, this.state.oldest), busy: true };
    this.chunks.set(first, { ...chunk, busy: true });
    try {
      const page = await this.ask(`/v1/log?from=${chunk.next}&to=${first + CHUNK}&limit=${CHUNK}&page_bytes=${PAGE_BYTES}&internal=true&value_bytes=${VALUE_BYTES}&consistency=stale`);
      this.chunks.set(first, { records: [...chunk.records, ...page.records], next: page.next, busy: false });
      for (const old of this.chunks.keys()) {
        if (this.chunks.size <= CHUNKS_KEPT) break;
        this.chunks.delete(old);
      }
      this.setState({});
    } catch (problem) {
      this.chunks.delete(first);
      if (!this.gone.signal.aborted) this.setState({ problem });
    }
  }

  /** The record, "hidden" where this user may not see it, or null while it is fetched. @param {number} index */
  record(index) {
    const first = index - (index % CHUNK);
    const chunk = this.chunks.get(first);
    if (chunk && index < chunk.next) return chunk.records.find((each) => each.index === index) || "hidden";
    const asked = [...this.chunks.values()].filter((each) => each.busy).length;
    if (!chunk?.busy && asked < ASKED_MAX && !this.state.problem) this.fetchChunk(first);
    return null;
  }

  /** @param {any} event */
  async seek(event) {
    event.preventDefault();
    try {
      const { index, hint } = await find(this, event.target.elements.place.value.trim());
      const { oldest, last } = this.state;
      const beyond = index === undefined || hint ? "" : index > last ? `the newest record is ${number(last)}` : index < oldest ? `records before ${number(oldest)} are trimmed: they cannot be read any more` : "";
      this.setState({ hint: hint || beyond });
      if (index !== undefined) this.jump(index);
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render() {
    const { oldest, last, problem, follows, density, hint, form, seen } = this.state;
    if (last === undefined) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const isFiltered = Object.keys(this.filter).length > 0;
    const follow = () => {
      this.setState({ follows: !follows, seen: last });
      setTimeout(() => this.settle());
    };
    const choose = (/** @type {any} */ event) => {
      this.setState({ form: event.target.value });
      setTimeout(() => history.replaceState(history.state, "", this.address(this.filter)));
    };
    return html`
      <form class="tools" onSubmit=${(/** @type {any} */ event) => this.seek(event)}>
        <label>Go to <input type="search" name="place" placeholder="index or time" size="22" /></label>
        ${this.asOf || isFiltered ? null : html`<button type="button" aria-pressed=${follows} onClick=${follow}>Follow${!follows && last > seen ? ` (${number(last - seen)} new)` : ""}</button>`}
        <label>Values as <select onChange=${choose}><option value="">they are</option>${FORMS.map((each) => html`<option value=${each} selected=${form === each}>${each}</option>`)}</select></label>
        <span class="faint">records ${number(oldest)} to ${number(last)}</span>
        <span class="unknown" role="status">${hint || ""}</span>
      </form>
      <${FilterForm} filter=${this.filter} onFilter=${(/** @type {any} */ filter) => { location.hash = this.address(filter); }} />
      <${Trouble} problem=${problem} retry=${() => this.reload()} />
      ${isFiltered ? null : html`<${Density} density=${density} jump=${(/** @type {number} */ index) => this.jump(index)} />`}
      ${isFiltered ? html`<${Search} filter=${this.filter} place=${Number(this.props.parameters.get("at"))} oldest=${oldest} last=${last} head=${head()} me=${this.props.me}
          row=${(/** @type {any} */ record) => html`<${Row} key=${record.index} index=${record.index} record=${record} form=${form} />`} />` : this.list()}`;
  }

  list() {
    const { oldest, form } = this.state;
    const top = this.virtualTop();
    const first = Math.floor(top / ROW);
    const seen = Math.ceil((this.box?.clientHeight || 600) / ROW) + 1;
    const rows = [];
    for (let at = first; at < Math.min(this.count, first + seen); at++) {
      rows.push(html`<${Row} key=${oldest + at} index=${oldest + at} record=${this.record(oldest + at)} form=${form}
        top=${this.state.top + at * ROW - top} />`);
    }
    return html`${head()}<div class="list" tabindex="0" role="region" aria-label="Records" ref=${(/** @type {any} */ box) => { this.box = box; }}
        onScroll=${() => this.onScroll()} onWheel=${() => this.pause()} onPointerDown=${() => this.pause()} onKeyDown=${() => this.pause()}>
        <div style=${{ height: `${this.height}px` }}></div>${rows}
      </div>`;
  }
}

/** One record, or that it is being fetched. `top`: where it stands, in pixels. @param {any} props */
function Row({ index, record, top, form }) {
  const place = top === undefined ? {} : { transform: `translateY(${top}px)`, top: 0 };
  if (!record || record === "hidden") {
    const text = record ? "a record that this user may not see" : "…";
    return html`<div class="row faint" style=${place}><span>${number(index)}</span><span class="when"></span><span></span><span>${text}</span></div>`;
  }
  return html`<a class="row" style=${place} href="#/entry?at=${index}">
    <span>${number(index)}</span><span class="when faint"><${Time} ms=${record.time_ms} day /></span>
    <span class="faint">${(record.operation || record.kind).replaceAll("_", " ")}</span>
    <bdi>${keyText(record)}</bdi><bdi>${record.result === "applied" ? "" : html`<span class="unknown">${record.result.replaceAll("_", " ")}</span> `}${oneLine(record, form)}</bdi></a>`;
}

/** When the log was written: a bar leads to the first record of its time. @param {any} props */
function Density({ density, jump }) {
  if (!density) return null;
  const high = Math.max(1, ...density.counts);
  return html`<div class="density" role="group" aria-label="Records over time">${density.counts.map((/** @type {number} */ count, /** @type {number} */ at) => {
    const text = `${number(count)} records from ${moment(density.from_time + at * density.span_ms, true)}`;
    return html`<button type="button" key=${at} tabindex="-1" title=${text} aria-label=${text}
      style=${{ height: `${count ? Math.max(4, (44 * count) / high) : 1}px` }} onClick=${() => jump(density.indexes[at])}></button>`;
  })}</div>`;
}
