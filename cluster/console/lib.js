/**
 * Binds Preact and htm, and holds what every page uses: requests with a time-out, polling, numbers and times for people.
 * @module
 */
import { h, render, Component } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { render, Component };

const TIMEOUT_MS = 5000;
const SLOW_MS = 2500; // without an answer for so long, the page says so

/** A problem that the node answered, or why there is no answer. */
export class Problem extends Error {
  /** @param {number} status 0: no answer came @param {string} code @param {string} detail @param {string} [missing] */
  constructor(status, code, detail, missing) {
    super(detail);
    this.status = status;
    this.code = code;
    this.missing = missing || "";
  }
}

/**
 * The answer of this node. Throws Problem.
 * @param {string} method
 * @param {string} path
 * @param {{signal?: AbortSignal, json?: object, bytesMax?: number}} [more] `bytesMax`: a larger answer is not read
 * @returns {Promise<any>}
 */
export async function send(method, path, { signal, json, bytesMax = Infinity } = {}) {
  const late = AbortSignal.timeout(TIMEOUT_MS);
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { Accept: "application/json" },
      body: json && JSON.stringify(json),
      cache: "no-store",
      signal: signal ? AbortSignal.any([late, signal]) : late,
    });
    const bytes = Number(answer.headers.get("Content-Length"));
    if (bytes > bytesMax) {
      answer.body?.cancel();
      throw new Problem(413, "too_large", `it has ${size(bytes)}`);
    }
    const body = await answer.json();
    if (answer.ok) return body;
    throw new Problem(answer.status, body.code || "", body.detail || answer.statusText, body.missing);
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    const why = late.aborted ? `no answer within ${TIMEOUT_MS / 1000} s` : "the node cannot be reached";
    throw new Problem(0, "unreachable", why);
  }
}

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
    /** @type {number | undefined} */
    this.timer = undefined;
    this.onVisible = () => document.hidden || this.reload();
  }

  componentDidMount() {
    document.addEventListener("visibilitychange", this.onVisible);
    this.reload();
  }

  componentWillUnmount() {
    document.removeEventListener("visibilitychange", this.onVisible);
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
    const slow = setTimeout(() => this.props.onContact?.(new Problem(0, "slow", "no answer yet")), SLOW_MS);
    try {
      const found = await this.load();
      this.setState({ ...found, problem: null, at: Date.now() });
      this.props.onContact?.(null, found);
    } catch (error) {
      if (this.gone.signal.aborted) return;
      this.setState({ problem: error });
      this.props.onContact?.(error);
    } finally {
      clearTimeout(slow);
      this.asking = false;
    }
    if (this.everyMs && !document.hidden && !this.gone.signal.aborted) {
      this.timer = setTimeout(() => this.reload(), this.everyMs);
    }
  }

  /** @param {string} path @param {{bytesMax?: number}} [more] */
  ask(path, more) {
    return send("GET", path, { signal: this.gone.signal, ...more });
  }
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

/** A moment, local with its UTC form as a tip. @param {{ms: number, day?: boolean}} props */
export function Time({ ms, day }) {
  const moment = new Date(ms);
  const local = moment.toLocaleTimeString("en-GB") + "." + String(moment.getMilliseconds()).padStart(3, "0");
  const text = day ? `${moment.toLocaleDateString("en-CA")} ${local}` : local;
  return html`<time datetime=${moment.toISOString()} title=${moment.toISOString()}>${text}</time>`;
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
