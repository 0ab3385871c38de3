/**
 * Binds Preact and htm, and holds what every page uses: requests with a time-out, polling, numbers and times for people.
 * @module
 */
import { h, render, Component } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { render, Component };

const TIMEOUT_MS = 5000;

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
 * The answer of this node. Throws Problem.
 * @param {string} method
 * @param {string} path
 * @param {{signal?: AbortSignal, json?: object, timeoutMs?: number}} [more]
 * @returns {Promise<any>}
 */
export async function send(method, path, { signal, json, timeoutMs = TIMEOUT_MS } = {}) {
  const late = AbortSignal.timeout(timeoutMs);
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { Accept: "application/json" },
      body: json && JSON.stringify(json),
      cache: "no-store",
      signal: signal ? AbortSignal.any([late, signal]) : late,
    });
    const body = await answer.json();
    if (answer.ok) return body;
    throw new Problem(answer.status, body.code || "", body.detail || answer.statusText, body);
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    const why = late.aborted ? `no answer within ${timeoutMs / 1000} s` : "the node cannot be reached";
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
    try {
      const found = await this.load();
      this.setState({ ...found, problem: null, at: Date.now() });
      this.props.onContact?.(null);
    } catch (error) {
      if (this.gone.signal.aborted) return;
      this.setState({ problem: error });
      this.props.onContact?.(error);
    } finally {
      this.asking = false;
    }
    if (this.everyMs && !document.hidden && !this.gone.signal.aborted) {
      this.timer = setTimeout(() => this.reload(), this.everyMs);
    }
  }

  /** @param {string} path */
  ask(path) {
    return send("GET", path, { signal: this.gone.signal });
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
