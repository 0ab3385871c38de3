/**
 * Draws the frame around the pages: which node this is, whether it answers, and where one can go.
 * @module
 */
import { html, render, Component, duration, send, Trouble } from "./lib.js";
import { Overview } from "./overview.js";
import { LogPage } from "./log.js";
import { EntryPage } from "./entry.js";
import { KeysPage } from "./keys.js";
import { GroupsPage } from "./groups.js";
import { Band, withMoment } from "./moment.js";

/** @type {[string, string, any][]} path, name in the menu (empty: none), page */
const PAGES = [
  ["overview", "Overview", Overview],
  ["log", "Log", LogPage],
  ["entry", "", EntryPage],
  ["keys", "Keys", KeysPage],
  ["groups", "Groups", GroupsPage],
];

/** The page and its parameters, by the part of the address behind `#/`. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path || "overview", parameters: withMoment(path || "overview", new URLSearchParams(query || "")) };
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

class App extends Component {
  constructor() {
    super();
    this.state = { ...place(), problem: null, contact: Date.now(), me: null, now: Date.now() };
    this.onContact = (/** @type {any} */ problem) =>
      this.setState(problem ? { problem } : { problem: null, contact: Date.now() });
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
      const [version, me] = await Promise.all([send("GET", "/version"), send("GET", "/v1/access/me")]);
      this.setState({ version, me });
      document.title = `raftlog: node ${version.node}`;
      this.onContact(null);
    } catch (problem) {
      this.onContact(problem);
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
    const page = { o: "overview", l: "log", k: "keys", g: "groups" }[event.key];
    if (page) location.hash = `#/${page}`;
    if (event.key === "t") this.setState({ band: !this.state.band });
    if (event.key === "?") this.setState({ keys: !this.state.keys });
    if (event.key === "/") {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"))?.focus();
    }
  }

  render() {
    const { path, parameters, problem, refusal, contact, version, me, now, keys, band } = this.state;
    const asOf = parameters.get("as_of");
    const [, , Shown] = PAGES.find(([name]) => name === path) || PAGES[0];
    const silentMs = now - contact;
    const needsToken = problem?.status === 401;
    return html`
      <header class="head">
        <h1>raftlog ${version ? html`<span class="faint">node ${version.node}</span>` : null}</h1>
        <nav aria-label="Pages">${PAGES.map(([name, label]) => label && html`
          <a href="#/${name}" aria-current=${(path === "entry" ? "log" : path) === name ? "page" : undefined}>${label}</a>`)}</nav>
        <button type="button" class="travel" aria-pressed=${Boolean(asOf || band)} onClick=${() => this.setState({ band: !band })}>Time travel</button>
        <span class="contact faint" role="status">
          ${me?.user ? html`${me.user} ${me.named_by === "token" ? html`<button type="button" onClick=${this.onLogout}>Log out</button>` : null} ` : null}
          ${problem && problem.status === 0
            ? html`<span class="invalid">no answer; the last one came ${duration(silentMs)} ago</span>`
            : html`<span class="valid">●</span> live`}
        </span>
      </header>
      ${keys ? html`<p class="faint">Keys: <code>o</code> overview, <code>l</code> log, <code>k</code> keys, <code>g</code> groups, <code>t</code> time travel, <code>/</code> search, <code>?</code> this line</p>` : null}
      ${needsToken
        ? html`<${Login} onToken=${this.onToken} problem=${problem} refusal=${refusal} />`
        : html`${asOf || band ? html`<${Band} index=${asOf} path=${path} onClose=${() => this.setState({ band: false })} />` : null}
          <main class=${problem?.status === 0 ? "old" : ""}>
            <${Shown} key=${path + parameters} parameters=${parameters} onContact=${this.onContact} me=${me} /></main>`}
      ${version ? html`<footer class="faint"><p>raftlog ${version.version}, ${version.modules} modules, log <code>${version.log}</code></p></footer>` : null}`;
  }
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
