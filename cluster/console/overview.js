/**
 * Shows the cluster as this node knows it: what is wrong and what to do, the nodes, the newest record, rates and events over time.
 * @module
 */
import { html, Page, Time, Trouble, duration, number, size } from "./lib.js";
import { Chart, Rows, TimeLine, marks, span, words } from "./charts.js";
import { Verdict, trouble } from "./verdict.js";

const STEPS = [[1, "10 minutes"], [60, "24 hours"]];
const EVENTS_SHOWN = 100;
const OLD_MS = 3_000; // nodes report to each other every second: an older value looks old
const NEWEST_MS = 2_000; // from one look at the newest record to the next
const RECORD_BYTES = 65_536; // a larger newest record is not fetched for its tile
const VALUE_SHOWN = 120; // characters

export class Overview extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    this.state = { step: 1 };
    this.rows = new Rows();
    /** @type {any[]} */
    this.events = [];
    this.seen = 0;
    this.newestDue = 0;
  }

  componentDidMount() {
    super.componentDidMount();
    this.ticker = setInterval(() => this.setState({ now: Date.now() }), 1000); // ages go on when no answer comes
  }

  componentWillUnmount() {
    clearInterval(this.ticker);
    super.componentWillUnmount();
  }

  async load() {
    const { step } = this.state;
    try {
      const { cluster, leaderless: explained, history, events } = await this.ask("/v1/overview");
      await this.catchUp(events);
      const rows = this.rows.lacks(step, history) ? this.rows.begin(await this.ask(`/v1/history?step=${step}`)) : this.rows.go(history);
      const newest = await this.newest(cluster.last_user_index);
      return { cluster, newest, explained, rows, shown: span(rows), refusal: null, trouble: trouble(cluster, explained) };
    } catch (refusal) {
      const { status, code } = /** @type {any} */ (refusal);
      if (status !== 403 && code !== "no_leader") throw refusal; // without a leader a refusal is not certain
      const cluster = await this.ask("/v1/cluster");
      return { cluster, newest: await this.newest(cluster.last_user_index), explained: null, rows: null, refusal, trouble: trouble(cluster, null) };
    }
  }

  /** Takes the events that are new; asks for them where the answer may not have all. @param {any} events */
  async catchUp(events) {
    if (events.next < this.seen) [this.seen, this.events] = [0, []]; // the process began again
    let fresh = events.events.filter((/** @type {any} */ each) => each.number > this.seen);
    if (fresh.length && fresh.length === events.events.length) fresh = (await this.ask(`/v1/events?after=${this.seen}`)).events;
    this.seen = events.next;
    this.events = [...fresh.reverse(), ...this.events].slice(0, EVENTS_SHOWN);
  }

  /** The newest record of a user, or why it is not shown. @param {number} index */
  async newest(index) {
    if (!index || this.state.newest?.index === index || performance.now() < this.newestDue) return this.state.newest;
    this.newestDue = performance.now() + NEWEST_MS;
    try {
      const page = await this.ask(`/v1/log?from=${index}&to=${index + 1}&consistency=stale`, { bytesMax: RECORD_BYTES });
      return page.records[0] || { index, why: "this user may not see it" };
    } catch (problem) {
      const { status, message, missing } = /** @type {any} */ (problem);
      if (!status) throw problem;
      return { index, why: missing ? `the grant is missing: ${missing}` : message };
    }
  }

  render() {
    const { cluster, newest, explained, rows, shown, refusal, problem, at } = this.state;
    if (!cluster) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    return html`
      ${problem && problem.status !== 0 ? html`<${Trouble} problem=${problem} />` : null}
      <${Verdict} cluster=${cluster} explained=${explained} />
      <${Trouble} problem=${refusal} />
      <${Facts} cluster=${cluster} newest=${newest} />
      <h2 class="unseen">Nodes</h2>
      <div class="nodes">${cluster.members.map((/** @type {any} */ member) => html`
        <${Node} member=${member} cluster=${cluster} sinceMs=${Date.now() - at} />`)}</div>
      ${rows ? this.charts(rows, shown) : null}
      ${refusal ? null : html`<${Events} events=${this.events} />`}`;
  }

  /** @param {any} rows @param {any} shown */
  charts(rows, shown) {
    const { columns, step_s } = rows;
    const found = marks(this.events, shown);
    const choose = (/** @type {number} */ step) => {
      this.setState({ step });
      setTimeout(() => this.reload());
    };
    const chart = (/** @type {string} */ title, /** @type {string} */ unit, /** @type {any} */ lines) => html`
      <${Chart} title=${title} unit=${unit} lines=${lines} times=${shown.times} shown=${shown} marks=${found} />`;
    return html`
      <div class="tools"><h2>This node in the last</h2>${STEPS.map(([step, name]) => html`
        <button type="button" aria-pressed=${this.state.step === step} onClick=${() => choose(Number(step))}>${name}</button>`)}</div>
      ${shown.times.length < 2 ? html`<p class="faint">The first values come within ${step_s * 2} s.</p>` : html`
        <${TimeLine} marks=${found} shown=${shown} />
        <div class="charts">
          ${chart("Requests", "/s", [["writes", columns.writes], ["reads", columns.reads], ["problems", columns.problems]])}
          ${chart("Time of a write", "ms", [["p50", columns.write_p50_ms], ["p99", columns.write_p99_ms]])}
          ${chart("Time of a read", "ms", [["p50", columns.read_p50_ms], ["p99", columns.read_p99_ms]])}
          ${chart("One sync of the disk", "ms", [["sync", columns.sync_ms]])}
          ${chart("Records applied", "/s", [["records", columns.records]])}
          ${chart("Memory of the process", "MB", [["memory", columns.memory_bytes.map((/** @type {any} */ each) => each && Math.round(each / 1e5) / 10)]])}
        </div>`}`;
  }
}

/** One member, as this node knows it. `sinceMs`: the age of the answer. @param {any} props */
function Node({ member, cluster, sinceMs }) {
  const own = member.node === cluster.node;
  const { disk, link } = member;
  const leads = cluster.leader?.node === member.node;
  const down = link && !link.is_up;
  const role = down ? "not reached" : member.role?.replace("_", "-") || (leads ? "leader" : member.member);
  const rows = [
    row("durable to", member.durable, number, member.log_age_ms), row("applied to", member.applied, number, 0),
    own ? null : row("lag", member.lag, () => lag(member), member.log_age_ms),
    row("link", link, linked, 0), own ? row("up for", cluster.uptime_ms, duration, 0) : null,
    row("heard", own ? null : member.contact_ms, (ms) => (ms < 0 ? "never" : `${duration(ms + sinceMs)} ago`), 0),
    row("clock", member.clock_skew_ms, skew, 0), row("disk", disk, space, disk?.age_ms),
    row("program", member.program, String, member.program_age_ms),
  ];
  return html`<article class="node ${down ? "down" : leads ? "leads" : ""}">
    <h3><span>Node ${member.node}${own ? html` <span class="faint">(this one)</span>` : null}</span><span class="role">${role}</span></h3>
    <dl>${rows.map((each) => each && html`<dt>${each.name}</dt><dd class=${each.ageMs > OLD_MS ? "aged" : ""}>${each.text}
      ${each.ageMs > OLD_MS ? html` <span class="age">${duration(each.ageMs + sinceMs)} old</span>` : null}</dd>`)}
      <dt>at</dt><dd>${own ? member.url : html`<a href=${member.url}>${member.url}</a>`}</dd></dl></article>`;
}

/** @param {string} name @param {any} value @param {(value: any) => any} show @param {number | null} ageMs */
function row(name, value, show, ageMs) {
  return value === null || value === undefined ? null : { name, text: show(value), ageMs: ageMs || 0 };
}

/** @param {any} member */
function lag({ lag, lag_seconds }) {
  return lag ? `${number(lag)} record${lag > 1 ? "s" : ""}, ${number(lag_seconds)} s` : "none";
}

/** @param {any} link */
function linked(link) {
  const trip = link.round_trip_us === null ? "" : `, ${number(link.round_trip_us / 1000)} ms round trip`;
  const dropped = link.dropped ? `, ${number(link.dropped)} message${link.dropped > 1 ? "s" : ""} dropped` : "";
  return `${link.refuses || (link.is_up ? "up" : `down: ${link.trouble || "not connected"}`)}${trip}${dropped}`;
}

/** @param {number} ms */
function skew(ms) {
  return Math.abs(ms) < 50 ? "right" : `${duration(Math.abs(ms))} ${ms > 0 ? "ahead" : "behind"}`;
}

/** @param {any} disk */
function space({ free_bytes, size_bytes, lacks_bytes, sync_us }) {
  const full = lacks_bytes === null ? "" : `full, lacks ${size(lacks_bytes)}: `;
  const of = size_bytes ? ` of ${size(size_bytes)}` : "";
  return `${full}${size(free_bytes)} free${of}${sync_us ? `, ${number(sync_us / 1000)} ms a sync` : ""}`;
}

/** @param {any} props */
function Facts({ cluster, newest }) {
  const facts = [["committed", cluster.committed], ["oldest record", cluster.oldest], ["term", cluster.term],
    ["revision of the keys", cluster.revision], ["sessions", cluster.sessions]];
  return html`<div class="facts">
    <div class="newest"><span class="faint">newest record</span>${cluster.last_user_index ? html`
      <b><a href="#/entry?at=${cluster.last_user_index}">${number(cluster.last_user_index)}</a></b>
      <span>${newest?.why ? html`<span class="faint">${newest.why}</span>` : newest ? html`${began(newest)} <span class="faint">at <${Time} ms=${newest.time_ms} day /></span>` : null}</span>`
    : html`<b>none</b><span><code>raftlog append hello</code> writes one</span>`}</div>
    ${facts.map(([name, value]) => html`<div><span class="faint">${name}</span><b>${number(/** @type {any} */ (value))}</b></div>`)}</div>`;
}

/** Key and begin of the value, as text whatever they hold. @param {any} record */
function began({ operation, kind, key, key_b64, value, value_b64 }) {
  const text = value ?? (value_b64 === undefined ? "" : `base64 ${value_b64}`);
  const name = key ?? (key_b64 === undefined ? "" : `base64 ${key_b64}`);
  return html`<span class="faint">${operation || kind}</span> ${name ? html`<code><bdi>${cut(name)}</bdi></code> ` : null}<bdi>${cut(text)}</bdi>`;
}

/** @param {string} text */
function cut(text) {
  return text.length > VALUE_SHOWN ? `${text.slice(0, VALUE_SHOWN)}…` : text;
}

/** @param {any} props */
function Events({ events }) {
  return html`<h2>Newest events of this node</h2>
    ${events.length ? null : html`<p class="faint">None since it began.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Newest events"><table><tbody>${events.map((/** @type {any} */ event) => html`
      <tr key=${event.number}><td class="faint stamp"><${Time} ms=${event.time_ms} day /></td>
        <td class=${{ error: "invalid", warning: "unknown" }[/** @type {string} */ (event.level)] || ""}>${words(event)}</td></tr>`)}</tbody></table></div>`;
}
