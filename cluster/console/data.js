/**
 * Shows what comes into the log and what leaves it: imports, captures, sinks and readers, as far as this node has them.
 * @module
 */
import { html, Page, Trouble, Component, duration, nodeNow, number } from "./lib.js";
import { quoted } from "./action.js";
import { none } from "./groups.js";
import { visible } from "./value.js";

const IMPORTS = "raftlog/import/"; // an import puts its schema below it, under the number of its session
const IMPORTS_SHOWN = 50;
const COLUMNS_SHOWN = 8;

export class DataPage extends Page {
  async load() {
    /** @param {string} path */
    const may = async (path) => {
      try {
        return { found: await this.ask(path, { bytesMax: 1 << 20 }) };
      } catch (refusal) {
        if (/** @type {any} */ (refusal).status !== 403 && /** @type {any} */ (refusal).status !== 413) throw refusal;
        return { refusal };
      }
    };
    const [imports, groups] = await Promise.all([
      may(`/v1/kv?prefix=${encodeURIComponent(IMPORTS)}&limit=${IMPORTS_SHOWN}&consistency=stale`), may("/v1/consumers?consistency=stale")]);
    return { imports, groups, now: nodeNow() };
  }

  constructor(/** @type {any} */ props) {
    super(props);
    this.everyMs = 3000;
  }

  render() {
    const { imports, groups, problem, now } = this.state;
    if (!imports) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const all = groups.found?.consumers || [];
    const sinks = all.filter((/** @type {any} */ each) => each.name.startsWith("sink/"));
    return html`
      <${Trouble} problem=${problem?.status ? problem : null} />
      <h2>Imports and captures</h2>
      <p class="faint">Each wrote its schema into the log before its first record. Its position and its rejected lines lie beside its input, on the machine where it runs.</p>
      <${Imports} imports=${imports} />
      <h2>Sinks</h2>
      <p class="faint">A sink keeps another store up to date. Rejected records lie with its runner: its command shows them.</p>
      <${Readers} groups=${groups} shown=${sinks} now=${now} none=${html`${all.length ? "None of the groups below is a sink's." : none(this.props.me)} <${Command} text="raftlog sink run sinks.toml" />`}
        command=${(/** @type {string} */ name) => `raftlog sink status sinks.toml ${quoted(name.slice(5))}`} />
      <h2>Streams and other readers</h2>
      <p class="faint">A Spark query with a <code>groupId</code> is one of them. An export into files or tables keeps its position with them, and leaves nothing here: <code>raftlog verify DIR</code> proves one.</p>
      <${Readers} groups=${groups} shown=${all.filter((/** @type {any} */ each) => !sinks.includes(each))} now=${now} none=${html`${all.length ? "Sinks are the only readers." : none(this.props.me)} <${Command} text="raftlog log --group NAME --follow" />`}
        command=${(/** @type {string} */ name) => `raftlog consumers show ${quoted(name)}`} />
      <h2>Ask with SQL</h2>
      <p>DuckDB answers in a process of your own, so that a large question takes neither memory nor time of this node:</p>
      <p><${Command} text=${`raftlog query "SELECT operation, count(*) AS n FROM log GROUP BY ALL ORDER BY n DESC" --endpoints ${location.origin}`} /></p>
      <p><${Command} text=${`raftlog export --to DIR --endpoints ${location.origin}`} /></p>`;
  }
}

/** @param {any} props */
function Imports({ imports: { found, refusal } }) {
  if (refusal) return html`<${Trouble} problem=${refusal} />`;
  if (!found.kvs.length) return html`<p>Nothing was imported. <${Command} text="raftlog import FILE" /></p>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label="Imports"><table><thead><tr><th>source</th><th>format</th><th>columns</th><th class="n">session</th><th>more</th></tr></thead><tbody>
    ${found.kvs.map((/** @type {any} */ each) => html`<${Import} key=${each.key} item=${each} />`)}</tbody></table></div>
    ${found.more ? html`<p class="faint">Only the first ${number(IMPORTS_SHOWN)}: <a href="#/keys?prefix=${encodeURIComponent(IMPORTS)}">all of them</a>.</p>` : null}`;
}

/** One import: its schema is text that anyone may have written, so nothing of it is trusted. @param {any} props */
function Import({ item }) {
  const session = Number(item.key.slice(IMPORTS.length));
  const link = html`<a href="#/keys?key=${encodeURIComponent(item.key)}">${number(session)}</a>`;
  let schema;
  try {
    schema = JSON.parse(item.value);
  } catch {
    schema = null;
  }
  if (!Array.isArray(schema?.columns)) return html`<tr><td colspan="3" class="unknown">no schema that this page can read</td><td class="n">${link}</td><td></td></tr>`;
  const names = schema.columns.map((/** @type {any} */ each) => visible(`${each?.name} ${each?.type}`));
  const source = String(schema.source);
  return html`<tr><td>${visible(source)}</td><td>${visible(String(schema.format))}</td>
    <td title=${names.join(", ")}>${names.slice(0, COLUMNS_SHOWN).join(", ")}${names.length > COLUMNS_SHOWN ? ` and ${names.length - COLUMNS_SHOWN} more` : ""}</td>
    <td class="n">${link}</td><td><${Command} text=${`raftlog query ${quoted(`SELECT count(*) FROM "${source.replaceAll('"', '""')}"`)} --endpoints ${location.origin}`} /></td></tr>`;
}

/** @param {any} props */
function Readers({ groups: { refusal }, shown, now, none, command }) {
  if (refusal) return html`<${Trouble} problem=${refusal} />`;
  if (!shown.length) return html`<p>${none}</p>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label="Readers"><table><thead><tr><th>name</th><th class="n">next index</th><th class="n">lag in records</th><th class="n">oldest unread</th>
    <th>owner</th><th class="n">moved</th><th>more</th></tr></thead><tbody>${shown.map((/** @type {any} */ each) => html`<tr key=${each.name}>
      <td>${each.name.replace(/^sink\//, "")}</td><td class="n"><a href="#/log?at=${each.position.next[0]}">${number(each.position.next[0])}</a></td>
      <td class="n ${each.lag ? "unknown" : "valid"}">${number(each.lag)}</td>
      <td class="n">${!each.lag ? "–" : each.lag_seconds === null ? "not known" : duration(each.lag_seconds * 1000)}</td>
      <td>${each.owner || html`<span class="faint">none</span>`}</td><td class="n">${duration(Math.max(0, now - each.updated_ms))} ago</td>
      <td><${Command} text=${command(each.name)} /></td></tr>`)}</tbody></table></div>`;
}

/** A command, and a button that copies it: where the browser gives no clipboard, it is selected. */
class Command extends Component {
  async copy() {
    try {
      await navigator.clipboard.writeText(this.props.text);
      this.setState({ said: "Copied" });
    } catch {
      getSelection()?.selectAllChildren(/** @type {Node} */ (this.code));
      this.setState({ said: "Selected" });
    }
    setTimeout(() => this.setState({ said: "" }), 2000);
  }

  render() {
    return html`<span class="command"><code ref=${(/** @type {any} */ code) => { this.code = code; }}>${this.props.text}</code>
      <button type="button" aria-label=${`Copy: ${this.props.text}`} onClick=${() => this.copy()}>${this.state.said || "Copy"}</button></span>`;
  }
}
