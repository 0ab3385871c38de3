/**
 * Shows the log as a list over any number of records, of which only the visible ones are fetched and drawn.
 * @module
 */
import { html, Page, Time, Trouble, moment, number } from "./lib.js";

const ROW = 26; // pixels, as in console.css
const CHUNK = 50; // records in a request
const CHUNKS_KEPT = 40;
const HEIGHT_MAX = 8_000_000; // pixels that every browser can scroll
const BUCKETS = 120;

export class LogPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    this.state = { top: 0, follows: !props.parameters.get("at") };
    /** @type {Map<number, any[] | null>} by their first index; null: they are being fetched */
    this.chunks = new Map();
    /** @type {HTMLElement | null} */
    this.box = null;
    this.wanted = Number(props.parameters.get("at")) || 0;
  }

  async load() {
    const [status, density] = await Promise.all([
      this.ask("/v1/status"),
      this.state.density && Date.now() < this.state.densityDue ? null : this.ask(`/v1/log/density?buckets=${BUCKETS}&consistency=stale`),
    ]);
    const more = density ? { density, densityDue: Date.now() + 10_000 } : {};
    setTimeout(() => this.settle());
    return { oldest: status.oldest, last: status.applied, ...more };
  }

  /** Goes to the record that the address names, or to the end. */
  settle() {
    if (this.wanted) this.jump(this.wanted);
    else if (this.state.follows && this.box) this.box.scrollTop = this.box.scrollHeight;
    this.wanted = 0;
  }

  get count() {
    return this.state.last - this.state.oldest + 1;
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
    this.setState({ follows: index >= this.state.last });
    this.box.scrollTop = whole > 0 ? ((at * ROW) / whole) * real : 0;
  }

  /** @param {number} first */
  async fetchChunk(first) {
    this.chunks.set(first, null);
    try {
      const page = await this.ask(`/v1/log?from=${Math.max(first, this.state.oldest)}&to=${first + CHUNK}&limit=${CHUNK}&internal=true&consistency=stale`);
      this.chunks.set(first, page.records);
      for (const old of this.chunks.keys()) {
        if (this.chunks.size <= CHUNKS_KEPT) break;
        this.chunks.delete(old);
      }
      if (first + CHUNK > page.next) setTimeout(() => this.chunks.delete(first), 900); // it is not whole yet
      this.setState({ problem: null });
    } catch (problem) {
      this.chunks.delete(first);
      if (!this.gone.signal.aborted) this.setState({ problem });
    }
  }

  /** @param {number} index */
  record(index) {
    const first = index - (index % CHUNK);
    const found = this.chunks.get(first);
    if (found === undefined) this.fetchChunk(first);
    return found ? found.find((each) => each.index === index) || "hidden" : null;
  }

  /** @param {any} event */
  async seek(event) {
    event.preventDefault();
    const text = event.target.elements.place.value.trim();
    if (/^\d+$/.test(text)) return this.jump(Number(text));
    const ms = Date.parse(text);
    if (Number.isNaN(ms)) return this.setState({ hint: `${text} is neither an index nor a time such as 2026-11-29 14:00` });
    try {
      const page = await this.ask(`/v1/log?from_time=${Math.max(0, ms)}&limit=1&internal=true&consistency=stale`);
      this.setState({ hint: page.records.length ? "" : "no record is that new" });
      this.jump(page.records.length ? page.records[0].index : this.state.last);
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render() {
    const { oldest, last, problem, follows, density, hint } = this.state;
    if (last === undefined) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const top = this.virtualTop();
    const first = Math.floor(top / ROW);
    const seen = Math.ceil((this.box?.clientHeight || 600) / ROW) + 1;
    const rows = [];
    for (let at = first; at < Math.min(this.count, first + seen); at++) {
      rows.push(html`<${Row} key=${oldest + at} index=${oldest + at} record=${this.record(oldest + at)}
        top=${this.state.top + at * ROW - top} />`);
    }
    return html`
      <form class="tools" onSubmit=${(/** @type {any} */ event) => this.seek(event)}>
        <label>Go to <input type="search" name="place" placeholder="index or time" size="22" /></label>
        <button type="button" aria-pressed=${follows} onClick=${() => { this.setState({ follows: !follows }); setTimeout(() => this.settle()); }}>Follow</button>
        <span class="faint">records ${number(oldest)} to ${number(last)}</span>
        <span class="unknown" role="status">${hint || ""}</span>
      </form>
      <${Trouble} problem=${problem} />
      <${Density} density=${density} jump=${(/** @type {number} */ index) => this.jump(index)} />
      <div class="listhead" aria-hidden="true"><span>index</span><span class="when">time</span><span>kind</span><span>key</span><span>value</span></div>
      <div class="list" tabindex="0" role="region" aria-label="Records" ref=${(/** @type {any} */ box) => { this.box = box; }}
        onScroll=${() => this.box && this.setState({ top: this.box.scrollTop })}
        onWheel=${() => this.setState({ follows: false })}>
        <div style=${{ height: `${this.height}px` }}></div>${rows}
      </div>`;
  }
}

/** One record, or that it is being fetched. @param {any} props */
function Row({ index, record, top }) {
  const place = { transform: `translateY(${top}px)`, top: 0 };
  if (!record || record === "hidden") {
    const text = record ? "a record that this user may not see" : "…";
    return html`<div class="row faint" style=${place}><span>${number(index)}</span><span class="when"></span><span></span><span>${text}</span></div>`;
  }
  return html`<a class="row" style=${place} href="#/entry?at=${index}">
    <span>${number(index)}</span><span class="when faint"><${Time} ms=${record.time_ms} /></span>
    <span class="faint">${record.operation || record.kind}</span>
    <span>${shown(record.key, record.key_b64)}</span><span>${shown(record.value, record.value_b64)}</span></a>`;
}

/** @param {string | undefined} text @param {string | undefined} b64 */
function shown(text, b64) {
  return text !== undefined ? text.slice(0, 200) : b64 !== undefined ? `base64 ${b64.slice(0, 60)}` : "";
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
