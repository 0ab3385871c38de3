/**
 * Compares the keys of a prefix at two moments: which were added, changed and deleted. It reads both page by page.
 * @module
 */
import { html, PAGE_BYTES, Page, Trouble, number } from "./lib.js";
import { Diff } from "./diff.js";
import { VALUE_BYTES, bytesOf, keyQuery, keyText } from "./value.js";

const PAGE = 500;
const FOUND_STEP = 100; // differences after which the comparison waits for its reader
const LOOKED_STEP = 100_000; // and keys of both moments

/** The keys of a prefix as of a revision, in the order of their bytes. */
class Cursor {
  /** @param {Page} page @param {string} prefix @param {number} revision */
  constructor(page, prefix, revision) {
    Object.assign(this, { page, revision });
    this.target = `/v1/kv?prefix=${encodeURIComponent(prefix)}&at=${revision}&limit=${PAGE}&page_bytes=${PAGE_BYTES}&keys_only=true&consistency=stale`;
    /** @type {any[]} */
    this.kvs = [];
    this.looked = 0;
    /** @type {string | null} */
    this.continuation = "";
  }

  /** The next key, which stays; null after the last. Throws Problem. */
  async peek() {
    if (!this.kvs.length && this.continuation !== null) {
      const more = this.continuation && `&continuation=${encodeURIComponent(this.continuation)}`;
      const found = await /** @type {any} */ (this).page.ask(this.target + more);
      this.kvs = found.kvs.map((/** @type {any} */ each) => ({ ...each, bytes: bytesOf(each.key, each.key_b64) }));
      this.continuation = found.continuation || null;
      /** @type {any} */ (this).page.setState({}); // shows how far it is
    }
    return this.kvs[0] || null;
  }

  take() {
    this.looked++;
    return this.kvs.shift();
  }
}

/** Below 0: the first key comes before. @param {Uint8Array} one @param {Uint8Array} other */
function order(one, other) {
  const shared = Math.min(one.length, other.length);
  for (let at = 0; at < shared; at++) if (one[at] !== other[at]) return one[at] - other[at];
  return one.length - other.length;
}

/** props: {prefix, before: revision, after: revision} */
export class Compare extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = 0;
    this.cursors = [new Cursor(this, props.prefix, props.before), new Cursor(this, props.prefix, props.after)];
    /** @type {any[]} */
    this.found = [];
    this.state = { busy: true };
  }

  async load() {
    const [one, other] = this.cursors;
    const found = this.found; // kept where a request fails: the cursors go on behind what they showed
    const [begin, looked] = [found.length, one.looked + other.looked];
    this.setState({ busy: true });
    while (found.length - begin < FOUND_STEP && one.looked + other.looked - looked < LOOKED_STEP) {
      const [old, now] = [await one.peek(), await other.peek()];
      if (!old && !now) return { busy: false, ends: true };
      const side = !old ? 1 : !now ? -1 : order(old.bytes, now.bytes);
      if (side <= 0) one.take();
      if (side >= 0) other.take();
      if (side < 0) found.push({ ...old, what: "deleted", old });
      else if (side > 0) found.push({ ...now, what: "added", now });
      else if (old.mod !== now.mod) found.push({ ...now, what: "changed", old, now });
    }
    return { busy: false };
  }

  /** Both values of a key. @param {any} each */
  async open(each) {
    const { before, after } = this.props;
    const ask = (/** @type {any} */ of, /** @type {number} */ at) => of && this.ask(`/v1/kv?${keyQuery(each)}&versions=1&at=${at}&value_bytes=${VALUE_BYTES}&consistency=stale`).then((found) => found.versions[0]);
    try {
      each.values = await Promise.all([ask(each.old, before), ask(each.now, after)]);
    } catch (problem) {
      each.problem = problem;
    }
    this.setState({});
  }

  render() {
    const [{ busy, ends, problem }, found] = [this.state, this.found];
    const looked = Math.max(...this.cursors.map((each) => each.looked));
    const count = (/** @type {string} */ what) => number(found.filter((/** @type {any} */ each) => each.what === what).length);
    const marks = { added: "valid", deleted: "invalid", changed: "unknown" };
    return html`<${Trouble} problem=${problem} retry=${() => this.reload()} />
      <p role="status">${count("added")} added, ${count("changed")} changed, ${count("deleted")} deleted between revision ${number(this.props.before)} and ${number(this.props.after)}${ends ? "" : `, of the first ${number(looked)} keys`}.</p>
      ${found.map((/** @type {any} */ each) => html`<details key=${keyQuery(each)} class="compared" onToggle=${(/** @type {any} */ event) => event.target.open && !each.values && this.open(each)}>
        <summary><span class=${/** @type {any} */ (marks)[each.what]}>${each.what}</span> <bdi>${keyText(each).slice(0, 300)}</bdi>${" "}
          <span class="faint">${[each.old, each.now].map((of) => (of ? `version ${number(of.version)}` : "none")).join(" → ")}</span></summary>
        <${Trouble} problem=${each.problem} />${each.values ? html`<${Diff} of=${keyText(each).slice(0, 300)} before=${each.values[0]} after=${each.values[1]} />` : null}
        <a href="#/keys?${keyQuery(each)}">its versions</a></details>`)}
      ${busy || ends ? null : html`<p><button type="button" onClick=${() => this.reload()}>Go on</button></p>`}`;
  }
}
