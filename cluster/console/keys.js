/**
 * Shows the keys of a prefix page by page, and the versions of one key.
 * @module
 */
import { html, Page, Time, Trouble, number } from "./lib.js";
import { Value } from "./entry.js";

const PAGE = 100;
const VERSIONS = 10;

export class KeysPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = 0;
    this.prefix = props.parameters.get("prefix") || "";
    this.key = props.parameters.get("key");
  }

  async load() {
    if (this.key !== null) {
      return { versions: await this.ask(`/v1/kv/${encodeURIComponent(this.key)}?versions=${VERSIONS}&consistency=stale`) };
    }
    return { range: await this.ask(this.target("")) };
  }

  /** @param {string} continuation */
  target(continuation) {
    const more = continuation ? `&continuation=${encodeURIComponent(continuation)}` : "";
    return `/v1/kv?prefix=${encodeURIComponent(this.prefix)}&limit=${PAGE}&keys_only=true&consistency=stale${more}`;
  }

  async more() {
    const { range, versions } = this.state;
    try {
      if (range) {
        const next = await this.ask(this.target(range.continuation));
        this.setState({ range: { ...next, kvs: [...range.kvs, ...next.kvs] } });
      } else {
        const next = await this.ask(`/v1/kv/${encodeURIComponent(this.key || "")}?versions=${VERSIONS}&from=${versions.next}&consistency=stale`);
        this.setState({ versions: { ...next, versions: [...versions.versions, ...next.versions] } });
      }
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render() {
    const { range, versions, problem } = this.state;
    const search = (/** @type {any} */ event) => {
      event.preventDefault();
      location.hash = `#/keys?prefix=${encodeURIComponent(event.target.elements.prefix.value)}`;
    };
    return html`
      <form class="tools" onSubmit=${search}><label>Keys that begin with
        <input type="search" name="prefix" defaultValue=${this.key ?? this.prefix} size="30" /></label><button type="submit">Show</button></form>
      <${Trouble} problem=${problem} retry=${() => this.reload()} />
      ${range ? this.list(range) : versions ? this.history(versions) : problem ? null : html`<p class="faint">Asking the node …</p>`}`;
  }

  /** @param {any} range */
  list(range) {
    return html`<p class="faint">${number(range.count)} keys, as of revision ${number(range.revision)}</p>
      ${range.count ? html`<table><thead><tr><th>key</th><th class="n">version</th><th class="n">revision</th></tr></thead><tbody>
        ${range.kvs.map((/** @type {any} */ each) => html`<tr><td>${each.key === undefined ? html`base64 ${each.key_b64}`
          : html`<a href="#/keys?key=${encodeURIComponent(each.key)}">${each.key}</a>`}</td><td class="n">${number(each.version)}</td><td class="n">${number(each.mod)}</td></tr>`)}
      </tbody></table>` : html`<p>No key begins so. <code>raftlog put ${this.prefix || "a"} value</code> makes one.</p>`}
      ${range.continuation ? html`<p><button type="button" onClick=${() => this.more()}>More</button></p>` : null}`;
  }

  /** @param {any} found */
  history(found) {
    return html`<h2>${this.key}</h2>
      ${found.versions.map((/** @type {any} */ each) => html`<section key=${each.index}>
        <p class="version"><b>version ${number(each.version)}</b> <span class="faint">revision ${number(each.revision)}, <a href="#/entry?at=${each.index}">record ${number(each.index)}</a>, <${Time} ms=${each.time_ms} day /></span></p>
        ${each.deleted ? html`<p class="unknown">deleted</p>` : html`<${Value} text=${each.value} b64=${each.value_b64} name="version-${each.version}" />`}</section>`)}
      ${found.next ? html`<p><button type="button" onClick=${() => this.more()}>Older versions</button></p>`
        : html`<p class="faint">${found.ends === "trimmed" ? "Older records are trimmed." : "The key did not exist before."}</p>`}`;
  }
}
