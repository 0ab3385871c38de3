/**
 * Shows the keys of a prefix and the versions of one key, now or as of a moment, and the differences of two moments.
 * @module
 */
import { html, PAGE_BYTES, Page, Time, Trouble, number } from "./lib.js";
import { quoted } from "./action.js";
import { Compare } from "./compare.js";
import { Diff } from "./diff.js";
import { Edit } from "./edit.js";
import { find, momentOf } from "./moment.js";
import { VALUE_BYTES, Value, bytesOf, keyQuery, keyText } from "./value.js";

const PAGE = 100;
const VERSIONS = 10;

export class KeysPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    const { parameters } = props;
    this.everyMs = 0;
    this.prefix = parameters.get("prefix") || "";
    this.id = { key: parameters.get("key") ?? undefined, key_b64: parameters.get("key_b64") ?? undefined };
    this.isOne = this.id.key !== undefined || this.id.key_b64 !== undefined;
    this.written = 0; // index of this page's newest write
    const { onVisible } = this;
    this.onVisible = () => document.querySelector(".edit[open]") || onVisible(); // a newer version would take the place of the form
  }

  async load() {
    const { parameters } = this.props;
    const [asOf, other] = [parameters.get("as_of"), parameters.get("compare")];
    const revision = asOf ? (await momentOf(this, asOf)).revision : 0;
    this.at = revision ? `&at=${revision}` : "";
    if (this.isOne) return { versions: await this.ask(this.target(parameters.get("from"))) };
    if (!other) return { range: await this.ask(this.target("")) };
    const now = revision || (await this.ask("/v1/kv?prefix=&limit=1&keys_only=true&consistency=stale")).revision;
    const moments = [(await momentOf(this, other)).revision, now];
    return { compared: moments.sort((one, two) => one - two) };
  }

  /** @param {string | number | null} more where the next page begins */
  target(more) {
    if (this.isOne) {
      const begin = more ? `&from=${more}` : this.at;
      return `/v1/kv?${keyQuery(this.id)}&versions=${VERSIONS}&value_bytes=${VALUE_BYTES}&min_index=${this.written}&consistency=stale${begin}`;
    }
    return `/v1/kv?prefix=${encodeURIComponent(this.prefix)}&limit=${PAGE}&page_bytes=${PAGE_BYTES}&keys_only=true&consistency=stale${this.at}${more ? `&continuation=${encodeURIComponent(more)}` : ""}`;
  }

  async more() {
    const { range, versions } = this.state;
    try {
      const next = await this.ask(this.target(range ? range.continuation : versions.next));
      this.setState(range ? { range: { ...next, kvs: [...range.kvs, ...next.kvs] } } : { versions: { ...next, versions: [...versions.versions, ...next.versions] } });
    } catch (problem) {
      this.setState({ problem });
    }
  }

  /** @param {any} event */
  async submit(event) {
    event.preventDefault();
    const { prefix, compare } = event.target.elements;
    try {
      const { index, hint } = compare.value ? await find(this, compare.value.trim()) : { index: "", hint: "" };
      this.setState({ hint });
      if (index !== undefined) location.hash = `#/keys?prefix=${encodeURIComponent(prefix.value)}${index && `&compare=${index}`}`;
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render() {
    const { range, versions, compared, problem, hint, outcome } = this.state;
    const missing = this.isOne && problem?.code === "key_not_found";
    return html`
      <form class="tools" onSubmit=${(/** @type {any} */ event) => this.submit(event)}>
        <label>Keys that begin with <input type="search" name="prefix" defaultValue=${(this.id.key ?? this.prefix).slice(0, 200)} size="26" /></label>
        <label>compared with <input type="text" name="compare" placeholder="index or time" defaultValue=${this.props.parameters.get("compare") || ""} size="16" /></label>
        <button type="submit">Show</button> <span class="unknown" role="status">${hint || ""}</span></form>
      <${Trouble} problem=${missing ? null : problem} retry=${() => this.reload()} />
      ${outcome ? html`<p role="status"><b class="valid">Done.</b> Revision ${number(outcome.revision)}, <a href="#/entry?at=${outcome.index}">record ${number(outcome.index)}</a>.</p>` : null}
      ${compared ? html`<${Compare} prefix=${this.prefix} before=${compared[0]} after=${compared[1]} />` : range ? this.list(range)
        : versions && !missing ? this.history(versions) : missing ? html`<h2 class="keyname"><bdi>${keyText(this.id)}</bdi></h2>
          <p role="alert">There is no such key${this.at ? " then" : ""}. ${this.id.key ? html`<a href="#/log?prefix=${encodeURIComponent(this.id.key)}">Search its records</a>.` : null}</p>${this.edit(null)}` : problem ? null : html`<p class="faint">Asking the node …</p>`}`;
  }

  /** @param {any} range */
  list(range) {
    return html`<p class="faint">${range.count === 1 ? "1 key" : `${number(range.count)} keys`}, as of revision ${number(range.revision)}</p>
      ${range.count ? html`<table class="keys"><thead><tr><th>key</th><th class="n">version</th><th class="n">revision</th></tr></thead><tbody>
        ${range.kvs.map((/** @type {any} */ each) => html`<tr><td><a href="#/keys?${keyQuery(each)}"><bdi>${keyText(each)}</bdi></a></td>
          <td class="n">${number(each.version)}</td><td class="n">${number(each.mod)}</td></tr>`)}
      </tbody></table>` : this.at ? html`<p>No key began so then.</p>` : html`<p>No key begins so. <code>raftlog put ${quoted(this.prefix || "a")} value</code> makes one.</p>`}
      ${range.continuation ? html`<p><button type="button" onClick=${() => this.more()}>More</button></p>` : null}`;
  }

  /** @param {any} found */
  history(found) {
    return html`<h2 class="keyname"><bdi>${keyText(this.id)}</bdi></h2>
      ${found.versions.map((/** @type {any} */ each, /** @type {number} */ at) => {
        const before = found.versions[at + 1];
        const value = each.deleted ? html`<p class="unknown">deleted</p>` : html`<${Value} text=${each.value} b64=${each.value_b64} whole=${each.value_bytes}
          name="version-${each.version}" load=${() => this.whole(each)} />`;
        return html`<section class="one" key=${each.index}>
          <p class="version"><b>${each.deleted ? "deletion" : `version ${number(each.version)}`}</b> <span class="faint">revision ${number(each.revision)}, <a href="#/entry?at=${each.index}">record ${number(each.index)}</a>, <${Time} ms=${each.time_ms} day /></span></p>
          ${at ? html`<details><summary>Value</summary>${value}</details>` : value}
          ${at ? null : this.edit(each)}
          ${before ? html`<p class="faint">Changed since the version before:</p><${Diff} of=${`version ${each.version}`} before=${before} after=${each} />` : null}</section>`;
      })}
      ${found.next ? html`<p><button type="button" onClick=${() => this.more()}>Older versions</button></p>`
        : html`<p class="faint">${found.ends === "trimmed" ? "Older records are trimmed." : "The key did not exist before."}</p>`}`;
  }

  /** The forms that change the key, unless the page shows another time than now. @param {any} version */
  edit(version) {
    const { parameters, me } = this.props;
    if (parameters.get("as_of") || parameters.get("from")) return html`<p class="faint">This is not the key as it is now: <a href="#/keys?${keyQuery(this.id)}&as_of=">go back to now</a> to change it.</p>`;
    const onWritten = (/** @type {any} */ outcome) => {
      this.written = outcome.index;
      this.setState({ outcome });
    };
    return html`<details class="edit"><summary>${version ? "Change or delete it" : "Write it"}</summary>
      <${Edit} id=${this.id} version=${version?.deleted ? null : version} me=${me} onWritten=${onWritten} onDone=${() => this.reload()} /></details>`;
  }

  /** @param {any} version */
  async whole(version) {
    const found = await this.ask(`/v1/kv?${keyQuery(this.id)}&versions=1&from=${version.index}&encoding=base64&consistency=stale`);
    return bytesOf(undefined, found.versions[0].value_b64);
  }
}
