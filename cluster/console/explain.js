/**
 * Shows as pictures why there is or is no leader, what happened to a record, and which readers hold retention back.
 * @module
 */
import { html, Page, Time, Trouble, number } from "./lib.js";
import { quoted } from "./action.js";
import { none } from "./groups.js";
import { Verdict, trouble } from "./verdict.js";

const SILENT_MS = 3_000; // nodes report to each other every second
const WIDE = 380; // the picture's least width, its height, and the radius of a node in it
const HIGH = 300;
const RADIUS = 46;
const GROUPS_SHOWN = 20;

export class ExplainPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.at = props.parameters.get("at");
  }

  async load() {
    const [cluster, explained, groups] = await Promise.all([
      this.ask("/v1/cluster"), this.ask("/v1/explain/leaderless"), this.ask("/v1/consumers?consistency=stale")]);
    this.at ||= cluster.last_user_index; // the newest when the page was opened
    let { entry, refusal } = this.state;
    try {
      const is_done = entry?.replicas.every((/** @type {any} */ each) => each.is_durable);
      if (this.at && !is_done) entry = await this.ask(`/v1/explain/${encodeURIComponent(this.at)}`);
      refusal = null;
    } catch (problem) {
      if (!(/** @type {any} */ (problem).status)) throw problem;
      refusal = problem;
    }
    return { cluster, explained, groups, entry, refusal, trouble: trouble(cluster, explained) };
  }

  render() {
    const { cluster, explained, groups, entry, refusal, problem } = this.state;
    if (!cluster) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const go = (/** @type {any} */ event) => {
      event.preventDefault();
      location.hash = `#/explain?at=${encodeURIComponent(event.target.elements.at.value.trim())}`;
    };
    return html`
      <${Trouble} problem=${problem?.status ? problem : null} />
      <${Verdict} cluster=${cluster} explained=${explained} />
      <div class="charts">
        <section><h2>${cluster.leader ? "Which node leads" : "Why there is no leader"}</h2><${Links} cluster=${cluster} view=${explained.nodes[0]} /></section>
        <section><h2>What holds the log</h2><${Held} cluster=${cluster} groups=${groups} view=${explained.nodes[0]} me=${this.props.me} /></section>
      </div>
      <form class="tools" onSubmit=${go}><h2>What happened to record</h2>
        <input type="search" name="at" aria-label="Index of a record" inputmode="numeric" defaultValue=${this.at || ""} size="12" />
        <button type="submit">Show</button></form>
      <${Trouble} problem=${refusal} />
      ${entry ? html`<${Steps} entry=${entry} voters=${explained.nodes[0].voters} />` : refusal ? null : html`<p>There is no record of a user yet. <code>raftlog append hello</code> writes one.</p>`}`;
  }
}

/** Whether the ways from this node to that member and back are open. @param {any} member */
function ways({ link, contact_ms }) {
  return { to: link.is_up && !link.refuses, back: contact_ms >= 0 && contact_ms < SILENT_MS };
}

/** The nodes and the links of this node, and how many votes it can reach. @param {any} props */
function Links({ cluster, view }) {
  const own = cluster.members.find((/** @type {any} */ each) => each.node === cluster.node);
  const others = cluster.members.filter((/** @type {any} */ each) => each.node !== cluster.node);
  const [wide, high] = [Math.max(WIDE, 130 * others.length), others.length ? HIGH : 2 * RADIUS + 8];
  const low = high - RADIUS - 4;
  const places = new Map([[cluster.node, [wide / 2, low]]]);
  others.forEach((/** @type {any} */ each, /** @type {number} */ at) => {
    const angle = (Math.PI * (at + 1)) / (others.length + 1);
    places.set(each.node, [wide / 2 - Math.cos(angle) * (wide / 2 - RADIUS - 4), low - Math.sin(angle) * (low - RADIUS - 24)]);
  });
  const voters = view.voters;
  const reached = voters.filter((/** @type {number} */ node) => node === cluster.node ? !view.is_fenced && !view.floor
    : others.some((/** @type {any} */ each) => each.node === node && ways(each).to && ways(each).back));
  const needed = Math.floor(voters.length / 2) + 1;
  const enough = reached.length >= needed;
  const text = `A leader needs the votes of ${needed} of the ${voters.length} voters. Node ${cluster.node} is in contact with ${reached.length} of them${reached.includes(cluster.node) ? ", itself among them" : ""}.`;
  return html`<p>${text} ${enough ? null : html`<b class="invalid">So it cannot be elected, and cannot elect.</b>`}</p>
    <svg viewBox="0 0 ${wide} ${high}" style=${{ maxWidth: `${wide}px` }} role="img" aria-label=${text}>
      ${others.map((/** @type {any} */ each) => html`<${Way} from=${places.get(cluster.node)} to=${places.get(each.node)} open=${ways(each)} node=${each.node} own=${cluster.node} />`)}
      ${cluster.members.map((/** @type {any} */ each) => html`<${Member} member=${each} place=${places.get(each.node)} leads=${cluster.leader?.node === each.node}
        vote=${vote(view, each.node)} down=${each !== own && !each.link.is_up} />`)}
    </svg>
    <p class="note faint">Thick ring: may vote. Dashed ring: a learner. Line: messages arrive. Dashed line with ✕: they do not. Links between other nodes are not known here: ask those nodes, or <code>raftlog explain</code>.</p>`;
}

/** What that member answered to this candidate. @param {any} view @param {number} node */
function vote(view, node) {
  const peer = view.peers.find((/** @type {any} */ each) => each.node === node);
  return !peer || !/candidate/.test(view.role) ? "" : peer.vote === true ? "gave its vote" : peer.vote === false ? "refused its vote" : "no vote yet";
}

/** The two directions between this node and another. @param {any} props */
function Way({ from, to, open, node, own }) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const far = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / far, dy / far];
  const line = (/** @type {number} */ side, /** @type {boolean} */ is_open, /** @type {string} */ text) => {
    const [ox, oy] = [-uy * 7 * side, ux * 7 * side];
    const [x1, y1, x2, y2] = [from[0] + ux * (RADIUS + 4) + ox, from[1] + uy * (RADIUS + 4) + oy, to[0] - ux * (RADIUS + 4) + ox, to[1] - uy * (RADIUS + 4) + oy];
    const at = side > 0 ? 0.62 : 0.38;
    const [ax, ay, ex, ey] = side > 0 ? [x2, y2, ux, uy] : [x1, y1, -ux, -uy];
    return html`<g class=${is_open ? "way" : "way cut"}><title>${text}</title><line x1=${x1} y1=${y1} x2=${x2} y2=${y2} />
      <path d="M${ax} ${ay}l${-ex * 9 - ey * 4} ${-ey * 9 + ex * 4}l${ey * 8} ${-ex * 8}z" />
      ${is_open ? null : html`<text x=${x1 + (x2 - x1) * at} y=${y1 + (y2 - y1) * at + 5}>✕</text>`}</g>`;
  };
  return html`${line(1, open.to, `node ${own} to node ${node}: ${open.to ? "open" : "cut"}`)}${line(-1, open.back, `node ${node} to node ${own}: ${open.back ? "open" : "nothing came lately"}`)}`;
}

/** @param {any} props */
function Member({ member, place: [x, y], leads, vote, down }) {
  const kind = down ? "down" : leads ? "leads" : member.member === "voter" ? "voter" : "learner";
  return html`<g class="member ${kind}"><circle cx=${x} cy=${y} r=${RADIUS} />
    <text x=${x} y=${y - 3}>Node ${member.node}</text>
    <text x=${x} y=${y + 14} class="small">${down ? "not reached" : member.role?.replace("_", "-") || (leads ? "leader" : member.member)}</text>
    ${vote ? html`<text x=${x} y=${y - RADIUS - 8} class="small">${vote}</text>` : null}</g>`;
}

/** What a record went through. @param {any} props */
function Steps({ entry, voters }) {
  const of = entry.replicas.filter((/** @type {any} */ each) => voters.includes(each.node));
  const known = of.filter((/** @type {any} */ each) => each.is_durable !== undefined && each.is_durable !== null);
  const durable = of.filter((/** @type {any} */ each) => each.is_durable);
  const own = entry.replicas.find((/** @type {any} */ each) => each.node === entry.node);
  const is_committed = entry.state !== "uncommitted";
  const copies = known.length < of.length ? `known of ${known.length} of ${of.length} voters: ask the leader` : `on ${durable.length} of ${of.length} voters`;
  /** @type {[string, boolean, any][]} */
  const steps = [
    ["proposed", true, entry.record ? html`term ${number(entry.record.term)}, <${Time} ms=${entry.record.time_ms} day />` : "it is in the log"],
    ["written", Boolean(own?.is_durable), own?.is_durable ? `synced on node ${entry.node}${entry.role === "leader" ? ", which leads" : ""}` : `not yet synced on node ${entry.node}`],
    ["replicated", is_committed || durable.length * 2 > of.length, copies],
    ["committed", is_committed, is_committed ? "a majority has it: it stays" : "no majority has it yet: it may still be lost"],
    ["applied", entry.state === "applied", entry.state === "applied" ? html`on node ${entry.node}: ${entry.record?.result || "in force"}` : "not yet: its effect is not known"],
  ];
  return html`<ol class="steps">${steps.map(([name, done, text]) => html`<li class=${done ? "done" : ""}><b>${name}</b> <span class="said">${done ? "" : "(not yet) "}</span><span class="faint">${text}</span></li>`)}</ol>
    <p>${entry.words.join(" ")} <a href="#/entry?at=${entry.at}">All about record ${number(entry.at)}</a></p>`;
}

/** Where the readers are in the log, the farthest behind first. @param {any} props */
function Held({ cluster, groups, view, me }) {
  const { oldest, last } = cluster;
  const share = (/** @type {number} */ index) => `${(100 * Math.max(0, Math.min(1, (index - oldest) / Math.max(1, last - oldest + 1)))).toFixed(2)}%`;
  const readers = groups.consumers.map((/** @type {any} */ each) => ({ name: each.name, next: each.position.next[0], lag: each.lag }));
  const nodes = cluster.members.filter((/** @type {any} */ each) => each.durable !== null).map((/** @type {any} */ each) =>
    ({ name: `node ${each.node}`, is_node: true, next: each.durable + 1, lag: last - each.durable }));
  const all = [...readers, ...nodes].sort((one, other) => one.next - other.next);
  const first = readers.sort((/** @type {any} */ one, /** @type {any} */ other) => one.next - other.next)[0];
  return html`<p>${view.held_by ? html`<b class="unknown">The group ${view.held_by} holds retention back</b>: it stands at ${number(view.held_next)}. Start its reader, or <code>raftlog consumers delete ${quoted(view.held_by)}</code>.`
    : first && first.lag ? html`The group <b>${first.name}</b> is the farthest behind. Retention waits for it only where <code>retention.held_bytes</code> is set, and the leader names it here.`
    : first ? "No reader is behind: none holds anything back." : none(me)}</p>
    <div class="bars"><div class="bar-row ends faint"><span></span><span class="track-ends"><span>${number(oldest)}, the oldest</span><span>${number(last)}, the newest</span></span></div>
      ${all.slice(0, GROUPS_SHOWN).map((each) => html`<div class="bar-row ${each.is_node ? "copy" : each.name === view.held_by ? "holds" : ""}" key=${each.name}>
        <a href="#/log?at=${each.next}">${each.name}</a>
        <span class="track" title=${`next ${number(each.next)}, ${number(each.lag)} records behind`}><span class="read" style=${{ width: share(each.next) }}></span></span>
        <span class="n">${each.lag ? `${number(each.lag)} behind` : each.is_node ? "has all" : "read all"}</span></div>`)}</div>
    ${all.length > GROUPS_SHOWN ? html`<p class="faint">And ${number(all.length - GROUPS_SHOWN)} that are closer: <a href="#/groups">Groups</a>.</p>` : null}
    <p class="note faint">A bar is what a group has read, or a node has on its disk, from the oldest record to the newest. The leader keeps a part of the log for slow nodes.</p>`;
}
