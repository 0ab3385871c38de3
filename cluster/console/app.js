/**
 * Draws the frame around the pages: which node this is, whether it answers, and where one can go.
 * @module
 */
import { html, render, Component, duration, send, Time, Trouble } from "./lib.js";
import { Overview } from "./overview.js";
import { LogPage } from "./log.js";
import { EntryPage } from "./entry.js";
import { KeysPage } from "./keys.js";
import { GroupsPage } from "./groups.js";
import { DataPage } from "./data.js";
import { ExplainPage } from "./explain.js";

/** @type {[string, string, any][]} path, name in the menu (empty: none), page */
const PAGES = [
  ["overview", "Overview", Overview],
  ["log", "Log", LogPage],
  ["entry", "", EntryPage],
  ["keys", "Keys", KeysPage],
  ["groups", "Groups", GroupsPage],
  ["data", "Data", DataPage],
  ["explain", "Explain", ExplainPage],
];

/** The page and its parameters, by the part of the address behind `#/`. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path || "overview", parameters: new URLSearchParams(query || "") };
}

/** Asks for a token, so that a password manager can fill it in. */
function Login({ onToken, problem, refusal }) {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    onToken(event.target.elements.token.value);
  };
  return html`<main>
    <h2>This cluster asks for a user</h2>
    <p>${problem.message}</p>
    <${Trouble} problem=${refusal} />
    <form class="tools" onSubmit=${submit}>
      <input type="text" name="username" value="raftlog" autocomplete="username" hidden />
      <label>Token <input type="password" name="token" autocomplete="current-password" required size="44" /></label>
      <button type="submit">Show the cluster</button>
    </form>
    <p class="faint"><code>raftlog token create</code> makes a token.</p>
  </main>`;
}

/** Says that the node does not answer, since when, and where the others are. @param {any} props */
function Gone({ problem, contact, node, members }) {
  const others = members.filter((/** @type {any} */ each) => each.node !== node);
  return html`<section class="verdict bad" role="alert"><span class="invalid" aria-hidden="true">■</span><div>
    <b>${node ? `Node ${node}` : "This node"} does not answer: ${problem.message}.</b>
    <p>What is below came at <${Time} ms=${contact} day />, and may have changed since. The page asks again every second.</p>
    ${others.length ? html`<p>The other nodes: ${others.map((/** @type {any} */ each) => html`<a href=${each.url}>node ${each.node}, ${each.url}</a> `)}</p>` : null}
  </div></section>`;
}

class App extends Component {
  constructor() {
    super();
    this.state = { ...place(), problem: null, contact: Date.now(), me: null, now: Date.now() };
    this.onContact = (/** @type {any} */ problem, /** @type {any} */ found) => {
      const seen = found?.cluster ? { members: found.cluster.members, trouble: found.trouble } : {};
      this.setState(problem ? { problem } : { problem: null, contact: Date.now(), ...seen });
    };
    this.onToken = async (/** @type {string} */ token) => {
      try {
        await send("POST", "/v1/login", { json: { token: token.trim() } });
        this.setState({ problem: null, refusal: null });
        this.identify();
      } catch (refusal) {
        this.setState({ refusal });
      }
    };
    this.onLogout = async () => {
      await send("DELETE", "/v1/login").catch(this.onContact);
      this.setState({ me: null });
      this.identify();
    };
  }

  componentDidMount() {
    addEventListener("hashchange", () => this.setState(place()));
    addEventListener("keydown", (event) => this.key(event));
    setInterval(() => this.setState({ now: Date.now() }), 1000);
    this.identify();
  }

  async identify() {
    try {
      const [version, me, { members }] = await Promise.all(["/version", "/v1/access/me?consistency=stale", "/v1/cluster"].map((path) => send("GET", path)));
      this.setState({ version, me, members });
      this.onContact(null);
    } catch (problem) {
      this.onContact(problem);
    }
  }

  componentDidUpdate() {
    const { version, problem, trouble } = this.state;
    const wrong = problem?.status === 0 ? "■ no answer, " : trouble ? `▲ ${trouble}, ` : "";
    document.title = version ? `${wrong}raftlog: node ${version.node}` : "raftlog";
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
    const page = { o: "overview", l: "log", k: "keys", g: "groups", d: "data", e: "explain" }[event.key];
    if (page) location.hash = `#/${page}`;
    if (event.key === "?") this.setState({ keys: !this.state.keys });
    if (event.key === "/") {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"))?.focus();
    }
  }

  render() {
    const { path, parameters, problem, refusal, contact, version, me, members, now, keys } = this.state;
    const [, , Shown] = PAGES.find(([name]) => name === path) || PAGES[0];
    const silentMs = now - contact;
    const needsToken = problem?.status === 401;
    return html`
      <header class="head">
        <h1>raftlog ${version ? html`<span class="faint">node ${version.node}</span>` : null}</h1>
        <nav aria-label="Pages">${PAGES.map(([name, label]) => label && html`
          <a href="#/${name}" aria-current=${(path === "entry" ? "log" : path) === name ? "page" : undefined}>${label}</a>`)}</nav>
        <span class="contact faint" role="status">
          ${me?.user ? html`${me.user} ${me.named_by === "token" ? html`<button type="button" onClick=${this.onLogout}>Log out</button>` : null} ` : null}
          ${problem && problem.status === 0
            ? html`<span class="invalid">■</span> no answer; the last one came ${duration(silentMs)} ago`
            : html`<span class="valid">●</span> live`}
        </span>
      </header>
      ${keys ? html`<p class="faint">Keys: <code>o</code> overview, <code>l</code> log, <code>k</code> keys, <code>g</code> groups, <code>d</code> data, <code>e</code> explain, <code>/</code> search, <code>?</code> this line</p>` : null}
      ${problem?.status === 0 ? html`<${Gone} problem=${problem} contact=${contact} node=${version?.node} members=${members || []} />` : null}
      ${needsToken
        ? html`<${Login} onToken=${this.onToken} problem=${problem} refusal=${refusal} />`
        : html`<main class=${problem?.status === 0 ? "old" : ""}>
            <${Shown} key=${path + parameters} parameters=${parameters} onContact=${this.onContact} /></main>`}
      ${version ? html`<footer class="faint"><p>raftlog ${version.version}, ${version.modules} modules, log <code>${version.log}</code></p></footer>` : null}`;
  }
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
