/**
 * Time travel: the record up to which the whole console shows the log and the keys, in the address as `as_of`.
 * @module
 */
import { html, Page, Problem, Time, number, zone } from "./lib.js";

const SHOWN = ["log", "entry", "keys"]; // pages that show the state as of then
let kept = "";

/** The parameters of a page; the moment is kept by links, not by back and forward. `as_of=` without a number ends it. @param {string} path @param {URLSearchParams} parameters */
export function withMoment(path, parameters) {
  const named = parameters.get("as_of");
  if (named === null && kept && !history.state) parameters.set("as_of", kept);
  if (named === "") parameters.delete("as_of");
  kept = parameters.get("as_of") || "";
  const isOther = (named || "") !== kept || named === "";
  history.replaceState("was here", "", isOther ? `#/${path}?${parameters}` : undefined);
  return parameters;
}

/** The address of this page as of another moment ("": now). @param {string | number} index */
function addressAt(index) {
  const [path, query] = location.hash.split("?");
  const parameters = new URLSearchParams(query || "");
  parameters.set("as_of", String(index));
  return `${path || "#/overview"}?${parameters}`;
}

/** The record of the moment: its time and revision. Throws Problem. @param {Page} page @param {string} index as it stands in the address */
export async function momentOf(page, index) {
  const stop = Number(index) + 1;
  const found = await page.ask(`/v1/log?from=${encodeURIComponent(index)}${Number.isSafeInteger(stop) ? `&to=${stop}` : ""}&limit=1&internal=true&value_bytes=0&consistency=stale`);
  if (found.records.length) return found.records[0];
  if (Number(index) > found.index) throw new Problem(425, "future_index", `Record ${number(Number(index))} is not written yet: the newest is ${number(found.index)}`);
  throw new Problem(403, "forbidden", `This user may not see record ${number(Number(index))}: take one beside it`);
}

/**
 * The first record at or after a place that a person wrote: an index, or a time. `hint`: why it may not be the one that was meant.
 * @param {Page} page @param {string} text @returns {Promise<{index?: number, hint: string, time?: number}>}
 */
export async function find(page, text) {
  const digits = text.replaceAll(/[\s,]/g, "");
  if (/^\d+$/.test(digits)) {
    return Number.isSafeInteger(Number(digits)) ? { index: Number(digits), hint: "" } : { hint: `${text} is no index: they are below 2^53` };
  }
  const ms = Date.parse(zone.utc && /:\d\d[\d:.]*$/.test(text) ? `${text}Z` : text);
  if (Number.isNaN(ms)) return { hint: `${text} is neither an index nor a time such as 2026-11-29 14:00` };
  const found = await page.ask(`/v1/log?from_time=${Math.max(0, ms)}&limit=1&internal=true&value_bytes=0&consistency=stale`);
  const [record] = found.records;
  if (!record) return { index: found.index, hint: "no record is that new: this is the newest", time: ms };
  return { index: record.index, hint: record.index === found.oldest && record.time_ms > ms ? "the log begins after that time: this is its oldest record" : "", time: ms };
}

/** Says as of when the page is, and lets one choose another moment. props: {index: in the address, path, onClose} */
export class Band extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = 0;
  }

  /** @returns {Promise<object>} */
  async load() {
    const { index } = this.props;
    const { oldest, applied } = await this.ask("/v1/status");
    this.setState({ oldest, applied });
    const record = index ? await momentOf(this, index) : null;
    return index === this.props.index ? { record } : this.load();
  }

  /** @param {any} before */
  componentDidUpdate(before) {
    if (before.index === this.props.index) return;
    this.setState({ record: null, problem: null, sliding: 0 });
    this.reload();
  }

  /** @param {any} event */
  async submit(event) {
    event.preventDefault();
    const text = event.target.elements.moment.value.trim();
    try {
      const { index, hint, time } = await find(this, text);
      const isFirst = hint && index === this.state.oldest;
      this.setState({ hint });
      // The state at a time is that after the last record before it.
      if (index !== undefined) location.hash = addressAt(time === undefined || isFirst || hint ? index : index - 1);
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render() {
    const { oldest, applied, record, problem, hint } = this.state;
    const { index, path } = this.props;
    const at = Math.min(Number(index) || applied || 0, applied || 0);
    const choose = (/** @type {any} */ event) => {
      this.setState({ hint: "" });
      location.hash = addressAt(event.target.value);
    };
    return html`<section class="band ${index ? "past" : ""}" aria-label="Time travel">
      <p>${!index ? "The console shows now. Choose a moment:" : problem ? html`<span class="invalid">${problem.message}. Choose another moment.</span>` : record ? html`As of <b>record ${number(record.index)}</b>,
        written <b><${Time} ms=${record.time_ms} day /></b>${record.revision ? `, keys as of revision ${number(record.revision)}` : ""}.
        ${SHOWN.includes(path) ? "" : html` <b class="unknown">This page cannot go back: it shows now.</b>`}` : "Asking the node …"}</p>
      <form class="tools" onSubmit=${(/** @type {any} */ event) => this.submit(event)}>
        ${applied ? html`<input type="range" aria-label="Moment, as an index" min=${oldest} max=${applied} value=${at} onChange=${choose}
          onInput=${(/** @type {any} */ event) => this.setState({ sliding: Number(event.target.value) })} />
          <output>${number(this.state.sliding || at)}</output>` : null}
        <label>Moment <input type="text" name="moment" placeholder="index or time" size="18" /></label><button type="submit">Show</button>
        ${index ? html`<a class="button" href=${addressAt("")}>Back to now</a>` : html`<button type="button" onClick=${this.props.onClose}>Close</button>`}
        <span class="unknown" role="status">${hint || ""}</span>
      </form></section>`;
  }
}
