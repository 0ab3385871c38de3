/**
 * Shows the cluster as this node knows it: what is wrong, the nodes, rates over time, the newest events.
 * @module
 */
import { html, Page, Time, Trouble, duration, number, size } from "./lib.js";
import { Chart } from "./charts.js";

const STEPS = [[1, "10 minutes"], [60, "24 hours"]];
const EVENTS_SHOWN = 60;

export class Overview extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    this.state = { step: 1 };
    /** @type {any[]} */
    this.events = [];
    this.seen = 0;
  }

  async load() {
    const { step } = this.state;
    const [status, members] = await Promise.all([this.ask("/v1/status"), this.ask("/v1/members")]);
    try {
      const [explained, history, events] = await Promise.all([
        this.ask("/v1/explain/leaderless"),
        this.ask(`/v1/history?step=${step}`),
        this.ask(this.seen ? `/v1/events?after=${this.seen}` : `/v1/events?limit=${EVENTS_SHOWN}`),
      ]);
      this.seen = events.next;
      this.events = [...events.events.reverse(), ...this.events].slice(0, EVENTS_SHOWN);
      return { status, members, explained, history, shown: step, refusal: null };
    } catch (refusal) {
      if (/** @type {any} */ (refusal).status !== 403) throw refusal;
      return { status, members, refusal };
    }
  }

  render() {
    const { status, members, explained, history, refusal, problem } = this.state;
    if (!status) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const view = explained?.nodes[0];
    return html`
      ${problem && problem.status !== 0 ? html`<${Trouble} problem=${problem} />` : null}
      <${Verdict} status=${status} explained=${explained} />
      <${Trouble} problem=${refusal} />
      <h2 class="unseen">Nodes</h2>
      <div class="nodes">${members.members.map((/** @type {any} */ member) => html`
        <${Node} member=${member} status=${status} view=${view} />`)}</div>
      <${Facts} status=${status} />
      ${history ? this.charts(history) : null}
      ${refusal ? null : html`<${Events} events=${this.events} />`}`;
  }

  /** @param {any} history */
  charts(history) {
    const columns = history.columns;
    const count = columns.writes.length;
    const times = Array.from({ length: count }, (_, at) => history.end_ms / 1000 - (count - 1 - at) * history.step_s);
    const choose = (/** @type {number} */ step) => {
      this.setState({ step });
      setTimeout(() => this.reload());
    };
    return html`
      <div class="tools"><h2>This node in the last</h2>${STEPS.map(([step, name]) => html`
        <button type="button" aria-pressed=${this.state.step === step} onClick=${() => choose(Number(step))}>${name}</button>`)}</div>
      ${count < 2 ? html`<p class="faint">The first values come within ${history.step_s * 2} s.</p>` : html`<div class="charts">
        <${Chart} title="Requests to this node" unit="/s" times=${times} lines=${[["writes", columns.writes], ["reads", columns.reads], ["problems", columns.problems]]} />
        <${Chart} title="Time of a write" unit="ms" times=${times} lines=${[["p50", columns.write_p50_ms], ["p99", columns.write_p99_ms]]} />
        <${Chart} title="Time of a read" unit="ms" times=${times} lines=${[["p50", columns.read_p50_ms], ["p99", columns.read_p99_ms]]} />
        <${Chart} title="One sync of the disk" unit="ms" times=${times} lines=${[["sync", columns.sync_ms]]} />
        <${Chart} title="Records applied" unit="/s" times=${times} lines=${[["records", columns.records]]} />
        <${Chart} title="Memory of the process" unit="MB" times=${times}
          lines=${[["memory", columns.memory_bytes.map((/** @type {any} */ each) => each && Math.round(each / 1e5) / 10)]]} />
      </div>`}`;
  }
}

/** One sentence: which node leads, and whether anything is wrong; and what to do. @param {any} props */
function Verdict({ status, explained }) {
  const leader = status.leader?.node;
  const causes = explained?.causes || [];
  const kind = !leader ? "bad" : causes.length || status.is_cut_off ? "warn" : "";
  const summary = explained ? explained.summary : leader ? `Node ${leader} leads.` : "This node knows no leader.";
  return html`<section class="verdict ${kind}" aria-label="State of the cluster">
    <span class=${kind === "bad" ? "invalid" : kind ? "unknown" : "valid"} aria-hidden="true">${kind ? "▲" : "●"}</span>
    <div><b>${summary}</b>
      ${causes.length ? html`<ul>${causes.map((/** @type {any} */ cause) => html`<li>${cause.words}</li>`)}</ul>` : null}
    </div></section>`;
}

/** One member, as this node knows it. @param {any} props */
function Node({ member, status, view }) {
  const own = member.node === status.node;
  const leads = status.leader?.node === member.node;
  const peer = view?.peers.find((/** @type {any} */ each) => each.node === member.node);
  const follower = status.followers.find((/** @type {any} */ each) => each.node === member.node);
  const down = !own && peer && !peer.is_up;
  const role = down ? "not reached" : leads ? "leader" : own ? status.role : member.role === "learner" ? "learner" : "follower";
  const rows = own
    ? [["durable to", number(status.persisted)], ["applied to", number(status.applied)], ["up for", duration(status.uptime_ms)],
       ["clock", skew(status, member.node)]]
    : [["durable to", follower ? number(follower.match) : peer?.match !== undefined ? number(peer.match) : null],
       ["lag", follower ? lag(follower) : null],
       ["link", peer ? (peer.is_up ? "up" : "down") : null],
       ["heard", peer && (leads || status.role === "leader") ? `${duration(peer.heard_ms)} ago` : null],
       ["clock", skew(status, member.node)],
       ["disk lacks", peer?.disk_lacks_bytes ? size(peer.disk_lacks_bytes) : null],
       ["trouble", peer?.refuses || peer?.trouble || null]];
  return html`<article class="node ${down ? "down" : leads ? "leads" : ""}">
    <h3><span>Node ${member.node}${own ? html` <span class="faint">(this one)</span>` : null}</span><span class="role">${role}</span></h3>
    <dl>${rows.filter(([, value]) => value !== null).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
      <dt>at</dt><dd>${own ? member.url : html`<a href=${member.url}>${member.url}</a>`}</dd></dl></article>`;
}

/** @param {any} follower */
function lag(follower) {
  if (follower.lag === null) return follower.refused || "not known";
  return follower.lag ? `${number(follower.lag)} records, ${number(follower.lag_seconds)} s` : "none";
}

/** @param {any} status @param {number} node */
function skew(status, node) {
  const ms = status.clock_skews_ms[node];
  return ms === undefined ? null : Math.abs(ms) < 50 ? "right" : `${duration(Math.abs(ms))} ${ms > 0 ? "ahead" : "behind"}`;
}

/** @param {any} props */
function Facts({ status }) {
  const facts = [
    ["newest record", html`<a href="#/entry?at=${status.last_user_index}">${number(status.last_user_index)}</a>`],
    ["committed", number(status.committed)], ["oldest record", number(status.oldest)], ["term", number(status.term)],
    ["revision of the keys", number(status.revision)], ["sessions", number(status.sessions)],
  ];
  return html`<div class="facts">${facts.map(([name, value]) => html`<div><span class="faint">${name}</span><b>${value}</b></div>`)}</div>`;
}

/** @param {any} props */
function Events({ events }) {
  return html`<h2>Newest events of this node</h2>
    ${events.length ? null : html`<p class="faint">None since it began.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Newest events"><table><tbody>${events.map((/** @type {any} */ event) => html`
      <tr key=${event.number}><td class="faint"><${Time} ms=${event.time_ms} day /></td>
        <td class=${{ error: "invalid", warning: "unknown" }[/** @type {string} */ (event.level)] || ""}>${event.event.replaceAll("_", " ")}</td>
        <td class="faint">${fields(event.fields)}</td></tr>`)}</tbody></table></div>`;
}

/** @param {Record<string, any>} values */
function fields(values) {
  return Object.entries(values).filter(([name]) => name !== "node").map(([name, value]) => `${name} ${value}`).join(", ");
}
