/**
 * Draws the frame around the pages: which node this is, whether it answers, and where one can go.
 * @module
 */
import { html, render, Component, LOGIN, duration, nodeNow, send, waitedMs, zone, Time, Trouble } from "./lib.js";
import { Overview } from "./overview.js";
import { LogPage } from "./log.js";
import { EntryPage } from "./entry.js";
import { KeysPage } from "./keys.js";
import { GroupsPage } from "./groups.js";
import { DataPage } from "./data.js";
import { ExplainPage } from "./explain.js";
import { OperatePage } from "./operate.js";
import { AccessPage } from "./access.js";
import { Band, withMoment } from "./moment.js";

/** Name in the address, title, page, and the key that goes there (empty: it is not in the menu). @type {[string, string, any, string][]} */
const PAGES = [
  ["overview", "Overview", Overview, "o"],
  ["log", "Log", LogPage, "l"],
  ["entry", "Record", EntryPage, ""],
  ["keys", "Keys", KeysPage, "k"],
  ["groups", "Groups", GroupsPage, "g"],
  ["data", "Data", DataPage, "d"],
  ["explain", "Explain", ExplainPage, "e"],
  ["operate", "Operate", OperatePage, "p"],
  ["access", "Access", AccessPage, "a"],
];
const MENU = PAGES.filter(([, , , key]) => key);
const SLOW_MS = 1000; // until the frame says that an answer is late
const LOOK_MS = 500;
const BEAT_MS = 4000; // without an answer, until the frame asks by itself: a page that asks once sees that its node is gone

/** The page and its parameters, by the part of the address behind `#/`. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path || "overview", parameters: withMoment(path || "overview", new URLSearchParams(query || "")) };
}

/** Asks for a token, so that a password manager can fill it in. @param {any} props */
function Login({ onToken, ended, refusal }) {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    onToken(event.target.elements.token.value);
  };
  return html`<section class="login" aria-labelledby="login">
    <h2 id="login">This cluster asks for a user</h2>
    <p>${ended ? `The login of ${ended} has ended. The page keeps what was typed until the next one.` : "Give a token of a user. A password manager can keep it."}</p>
    <${Trouble} problem=${refusal} />
    <form class="tools" onSubmit=${submit}>
      <input type="text" name="username" value="raftlog" autocomplete="username" hidden />
      <label>Token <input type="password" name="token" autocomplete="current-password" required size="44" /></label>
      <button type="submit">Log in</button>
    </form>
    <p class="faint"><code>raftlog token create</code> makes a token.</p>
  </section>`;
}

/** The address names no page. @param {any} props */
function Missing({ path }) {
  return html`<h2>There is no page called ${path.slice(0, 60)}</h2>
    <p>The pages are ${MENU.map(([name, title], at) => html`${at ? ", " : ""}<a href="#/${name}">${title}</a>`)}.</p>`;
}

/** Whether this node answers, and how long it has not. @param {any} props */
class Contact extends Component {
  componentDidMount() {
    this.timer = setInterval(() => this.forceUpdate(), LOOK_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
  }

  render() {
    const { problem, contact } = this.props;
    const silentMs = performance.now() - contact;
    const [kind, mark, words, ms] = problem?.status === 0 ? ["invalid", "■", "no answer", silentMs]
      : waitedMs() > SLOW_MS ? ["unknown", "◌", "slow", waitedMs()] : ["valid", "●", "live", 0];
    return html`<span class="contact ${kind}" title=${words === "slow" ? "the oldest request that waits for its answer" : undefined}>
      <span aria-hidden="true">${mark}</span> <span role="status">${words}</span>
      ${ms ? html` <span aria-hidden="true">for ${duration(Math.max(1000, ms))}</span>` : null}</span>`;
  }
}

/** The keys of the keyboard, until `Esc`. @param {any} props */
function Help({ onClose, areOn, toggle }) {
  const rows = [...MENU.map(([, title, , key]) => [key, title]), ["/", "search on this page"], ["t", "time travel"], ["u", "local time or UTC"], ["?", "these keys"], ["Esc", "close"]];
  const show = (/** @type {any} */ box) => box && !box.open && box.showModal();
  return html`<dialog class="help" aria-labelledby="help" ref=${show} onClose=${onClose}>
    <h2 id="help">Keys</h2>
    <dl>${rows.map(([key, text]) => html`<dt><kbd>${key}</kbd></dt><dd>${text}</dd>`)}</dl>
    <p><label><input type="checkbox" checked=${areOn} onChange=${toggle} /> Single letters are keys</label></p>
    <form method="dialog"><button type="submit">Close</button></form>
  </dialog>`;
}

class App extends Component {
  constructor() {
    super();
    /** @type {any} */
    this.state = { ...place(), problem: null, contact: performance.now(), areOn: true, visit: 0 };
    this.onContact = (/** @type {any} */ problem, /** @type {any} */ found = null) => {
      const seen = found ? { seen: nodeNow(), ...(found.cluster && { members: found.cluster.members, trouble: found.trouble }) } : {};
      this.setState(problem ? { problem } : { problem: null, contact: performance.now(), ...seen });
    };
    this.onToken = async (/** @type {string} */ token) => {
      try {
        await send("POST", LOGIN, { json: { token: token.trim() } });
        this.setState({ asks: false, refusal: null, problem: null });
        await this.identify();
        dispatchEvent(new Event("resume"));
      } catch (refusal) {
        this.setState({ refusal });
      }
    };
    this.onLogout = async () => {
      await send("DELETE", LOGIN).catch(this.onContact);
      this.setState({ me: null, visit: this.state.visit + 1 }); // nothing stays on the page
      this.identify();
    };
    this.closeHelp = () => this.setState({ helps: false });
    this.toggleKeys = () => this.setState({ areOn: !this.state.areOn });
    this.toggleBand = () => this.setState({ band: !this.state.band });
    this.toggleZone = () => this.setState({ utc: (zone.utc = !zone.utc) });
    /** @type {HTMLElement | null} */
    this.heading = null;
    /** @type {string | undefined} the newest user that was logged in */
    this.user = undefined;
  }

  componentDidMount() {
    addEventListener("hashchange", () => {
      this.setState({ ...place(), opens: false, trouble: "" }, () => document.activeElement?.closest(".band") || this.heading?.focus());
      this.identify();
    });
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("login", () => this.setState({ asks: true }));
    setInterval(() => this.beat(), BEAT_MS / 2);
    this.identify();
  }

  async identify() {
    try {
      const paths = ["/version", "/v1/access/me?consistency=stale", "/v1/cluster"];
      const [version, me, { members }] = await Promise.all(paths.map((path) => send("GET", path)));
      const isOther = this.user !== undefined && this.user !== me.user; // who sees pages of its own
      this.user = me.user;
      this.setState({ version, me, members, visit: this.state.visit + (isOther ? 1 : 0) });
      this.onContact(null);
    } catch (problem) {
      this.onContact(problem);
      // Whom a node does not know it refuses only once the leader says so; a login counts without one.
      if (/** @type {any} */ (problem).code === "no_leader") this.setState({ asks: true });
    }
  }

  beat() {
    const { asks, contact } = this.state;
    if (!document.hidden && !asks && performance.now() - contact > BEAT_MS) this.identify();
  }

  componentDidUpdate() {
    const { version, problem, trouble, asks } = this.state;
    const wrong = asks ? "log in, " : problem?.status === 0 ? "■ no answer, " : trouble ? `▲ ${trouble}, ` : "";
    document.title = version ? `${wrong}raftlog: node ${version.node}` : "raftlog";
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") this.setState({ opens: false });
    if (!this.state.areOn || target.matches?.("input, select, textarea, [contenteditable]")) return;
    const page = MENU.find(([, , , key]) => key === event.key);
    if (page) location.hash = `#/${page[0]}`;
    else if (event.key === "?") this.setState({ helps: true });
    else if (event.key === "t") this.toggleBand();
    else if (event.key === "u") this.toggleZone();
    else if (event.key === "/") {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"))?.focus();
    }
  }

  render() {
    const { path, parameters, problem, contact, asks, refusal, helps, areOn, visit, version, me, band } = this.state;
    const asOf = parameters.get("as_of");
    const [, title, Shown] = PAGES.find(([name]) => name === path) || [path, "No such page", Missing];
    const isSilent = problem?.status === 0;
    return html`
      <button type="button" class="skip" onClick=${() => this.heading?.focus()}>Skip to the page</button>
      ${this.head()}
      ${helps ? html`<${Help} onClose=${this.closeHelp} areOn=${areOn} toggle=${this.toggleKeys} />` : null}
      <main>
        <h1 class="unseen" tabindex="-1" ref=${(/** @type {any} */ box) => { this.heading = box; }}>${title}</h1>
        ${asks ? html`<${Login} onToken=${this.onToken} ended=${me?.user} refusal=${refusal} />` : null}
        ${isSilent && !asks ? this.silence(problem) : null}
        <div hidden=${!!asks} class=${isSilent ? "old" : ""}>
          ${asOf || band ? html`<${Band} index=${asOf} path=${path} onClose=${this.toggleBand} />` : null}
          <${Shown} key=${`${visit} ${path} ${parameters}`} path=${path} parameters=${parameters} onContact=${this.onContact} me=${me} /></div>
      </main>
      ${version ? html`<footer class="faint"><p>raftlog ${version.version}, ${version.modules} modules, log <code>${version.log}</code></p></footer>` : null}`;
  }

  head() {
    const { path, parameters, problem, contact, version, me, opens, band } = this.state;
    const shown = path === "entry" ? "log" : path;
    return html`<header class="head">
      <a class="brand" href="#/overview">raftlog ${version ? html`<span class="faint">node ${version.node}</span>` : null}</a>
      <button type="button" class="menu" aria-expanded=${!!opens} aria-controls="pages" onClick=${() => this.setState({ opens: !opens })}>
        ${MENU.find(([name]) => name === shown)?.[1] || "Pages"} <span aria-hidden="true">${opens ? "▴" : "▾"}</span></button>
      <nav id="pages" class=${opens ? "opens" : ""} aria-label="Pages">${MENU.map(([name, title]) => html`
        <a href="#/${name}" aria-current=${shown === name ? "page" : undefined}>${title}</a>`)}</nav>
      <div class="frame">
        ${me?.user ? html`<span class="who"><span class="faint">${me.user}</span>
          ${me.named_by === "token" ? html` <button type="button" onClick=${this.onLogout}>Log out</button>` : null}</span>` : null}
        <button type="button" aria-pressed=${Boolean(band || parameters.get("as_of"))} title="The log and the keys as of an earlier moment" onClick=${this.toggleBand}>Time travel</button>
        <button type="button" aria-pressed=${zone.utc} title="Times in UTC, or local" onClick=${this.toggleZone}>UTC</button>
        <button type="button" aria-label="Keys" title="Keys" aria-haspopup="dialog" onClick=${() => this.setState({ helps: true })}>?</button>
        <${Contact} problem=${problem} contact=${contact} />
      </div>
    </header>`;
  }

  /** That this node does not answer, and where the others are. @param {any} problem */
  silence(problem) {
    const { version, members, seen } = this.state;
    const others = (members || []).filter((/** @type {any} */ each) => each.node !== version?.node);
    return html`<section class="verdict bad" role="alert"><span class="invalid" aria-hidden="true">■</span>
      <div><b>${version ? `Node ${version.node}` : "This node"} does not answer: ${problem.message}.</b>
        <p>${seen ? html`What is below came at <${Time} ms=${seen} day />, and may have changed since. ` : null}The page asks again.</p>
        ${others.length ? html`<p>The other nodes: ${others.map((/** @type {any} */ each, /** @type {number} */ at) => html`${at ? ", " : ""}<a href=${each.url}>node ${each.node} at ${each.url}</a>`)}</p>` : null}
      </div></section>`;
  }
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
