/**
 * Binds Preact and htm, and holds what every page uses: requests with a time-out, polling, numbers and times for people.
 * @module
 */
import { h, render, Component } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { render, Component };

export const LOGIN = "/v1/login";
const TIMEOUT_MS = 6000; // a node asks a leader for 5 s before it refuses
const AGAIN_MS = 2000; // until a page that asks once asks again, after no answer

/** When the requests that still wait were sent, in ms since the page began. @type {Set<{since: number}>} */
const waiting = new Set();
/** How far the node's clock is ahead of the browser's, by the header Date, which has whole seconds. */
let aheadMs = 0;
/** Whether times are shown in UTC: the switch of the frame. */
export const zone = { utc: false };

/** How long the oldest request without an answer has waited, in ms. */
export const waitedMs = () => Math.max(0, ...[...waiting].map((each) => performance.now() - each.since));

/** The node's time, in Unix ms: ages of its times are right also where the browser's clock is wrong. */
export const nodeNow = () => Date.now() + aheadMs;

/** A problem that the node answered, or why there is no answer. */
export class Problem extends Error {
  /** @param {number} status 0: no answer came @param {string} code @param {string} detail @param {any} [answer] its body */
  constructor(status, code, detail, answer = {}) {
    super(detail);
    this.status = status;
    this.code = code;
    this.answer = answer;
    this.missing = answer.missing || "";
  }
}

/**
 * The answer of this node. Throws Problem. Without a login the frame asks for one.
 * @param {string} method
 * @param {string} path
 * @param {{signal?: AbortSignal, json?: object, timeoutMs?: number, bytesMax?: number}} [more] `bytesMax`: a larger answer is not read
 * @returns {Promise<any>}
 */
export async function send(method, path, { signal, json, timeoutMs = TIMEOUT_MS, bytesMax = Infinity } = {}) {
  const late = AbortSignal.timeout(timeoutMs);
  const request = { since: performance.now() };
  waiting.add(request);
  try {
    const answer = await fetch(path, {
      method,
      headers: { Accept: "application/json" },
      body: json && JSON.stringify(json),
      cache: "no-store",
      signal: signal ? AbortSignal.any([late, signal]) : late,
    });
    const date = Date.parse(answer.headers.get("Date") || "") + 500;
    if (Math.abs(date - nodeNow()) > 1000) aheadMs = date - Date.now();
    const bytes = Number(answer.headers.get("Content-Length"));
    if (bytes > bytesMax) {
      answer.body?.cancel();
      throw new Problem(413, "too_large", `it has ${size(bytes)}`);
    }
    const body = await answer.json();
    if (answer.ok) return body;
    if (answer.status === 401 && path !== LOGIN) dispatchEvent(new Event("login"));
    throw new Problem(answer.status, body.code || "", body.detail || answer.statusText, body);
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    const why = late.aborted ? `no answer within ${timeoutMs / 1000} s` : "the node cannot be reached";
    throw new Problem(0, "unreachable", why);
  } finally {
    waiting.delete(request);
  }
}

/** Most bytes of records or keys that a page asks for at a time. */
export const PAGE_BYTES = 262_144;

/**
 * A page that asks again and again while it is visible. Subclasses have `load`, which returns the state to set, and
 * `show`, which draws it. `everyMs` 0: asks once, and when `reload` is called.
 */
export class Page extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = 1000;
    /** @type {any} */
    this.state = {};
    this.gone = new AbortController();
    this.asking = false;
    /** @type {string[]} what the last load has set */
    this.loaded = [];
    /** @type {number | undefined} */
    this.timer = undefined;
    this.onVisible = () => document.hidden || this.reload();
  }

  componentDidMount() {
    document.addEventListener("visibilitychange", this.onVisible);
    addEventListener("resume", this.onVisible); // after a login
    this.reload();
  }

  componentWillUnmount() {
    document.removeEventListener("visibilitychange", this.onVisible);
    removeEventListener("resume", this.onVisible);
    clearTimeout(this.timer);
    this.gone.abort();
  }

  /** @returns {Promise<object>} */
  async load() {
    return {};
  }

  async reload() {
    clearTimeout(this.timer);
    if (this.asking) return;
    this.asking = true;
    let againMs = 0;
    try {
      const found = await this.load();
      this.loaded = Object.keys(found);
      this.setState({ ...found, problem: null, at: Date.now() });
      this.props.onContact?.(null, found);
      againMs = this.everyMs;
    } catch (error) {
      if (this.gone.signal.aborted) return;
      if (!(error instanceof Problem)) reportError(error);
      const status = error instanceof Problem ? error.status : 500;
      const hidden = status === 403 ? this.loaded.map((name) => [name, undefined]) : []; // this user may not see it any more
      this.setState({ ...Object.fromEntries(hidden), problem: error });
      this.props.onContact?.(error);
      againMs = status === 401 ? 0 : this.everyMs || (status === 0 ? AGAIN_MS : 0);
    } finally {
      this.asking = false;
    }
    if (againMs && !document.hidden && !this.gone.signal.aborted) {
      this.timer = setTimeout(() => this.reload(), againMs);
    }
  }

  /** @param {string} path @param {{bytesMax?: number}} [more] */
  ask(path, more) {
    return send("GET", path, { signal: this.gone.signal, ...more });
  }
}

/** Gives the browser a file. @param {string} name @param {BlobPart[]} parts */
export function save(name, parts) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @param {number | null | undefined} value */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at++) bytes /= 1000;
  return `${bytes.toLocaleString("en", { maximumSignificantDigits: 3 })} ${units[at]}`;
}

/** @param {number | null | undefined} ms a duration */
export function duration(ms) {
  if (ms === null || ms === undefined || ms < 0) return "never";
  const units = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
  for (const [name, length] of units) {
    if (ms >= Number(length)) return `${Math.floor(ms / Number(length))} ${name}`;
  }
  return `${Math.round(ms)} ms`;
}

/** A moment as text, local or in UTC as the frame says. @param {number} ms Unix ms @param {boolean} [day] with the date */
export function moment(ms, day) {
  const at = new Date(zone.utc ? ms : ms - new Date(ms).getTimezoneOffset() * 60000);
  if (Number.isNaN(at.getTime())) return "–";
  const [date, time] = at.toISOString().slice(0, -1).split("T");
  return day ? `${date} ${time}` : time;
}

/** A moment, with its UTC form as a tip. @param {{ms: number, day?: boolean}} props */
export function Time({ ms, day }) {
  const at = new Date(ms);
  const utc = Number.isNaN(at.getTime()) ? undefined : at.toISOString();
  return html`<time datetime=${utc} title=${utc}>${moment(ms, day)}</time>`;
}

/** Says what is wrong with a request, and which grant is missing. @param {{problem: any, retry?: () => void}} props */
export function Trouble({ problem, retry }) {
  if (!problem) return null;
  const missing = problem.missing;
  return html`<p class="trouble" role="alert">
    ${problem.message}${missing ? html`. The missing grant: <code>${missing}</code>` : null}
    ${retry ? html` <button type="button" onClick=${retry}>Try again</button>` : null}
  </p>`;
}
