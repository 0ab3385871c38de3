/**
 * Changes the cluster: its leader and members, its log, a backup; and compares the states of the replicas.
 * @module
 */
import { html, Page, Problem, Trouble, number, save, size } from "./lib.js";
import { Action, Copied, lacks, quoted } from "./action.js";
import { records } from "./groups.js";

const STALL_MS = 20_000; // a backup that brings nothing for so long has broken off
const BACKUP_BYTES_MAX = 1 << 30; // a browser keeps it in memory until its end
const OPERATE = "operate on cluster";
const MEMBERS = "members on cluster";

export class OperatePage extends Page {
  async load() {
    const [members, status] = await Promise.all([this.ask("/v1/members"), this.ask("/v1/status")]);
    return { members, status };
  }

  render() {
    const { members, status, problem } = this.state;
    if (!members) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const leader = status.leader;
    return html`<${Trouble} problem=${problem?.status ? problem : null} />
      <p>${!leader ? html`<b class="invalid">This node knows no leader.</b> Changes wait for one: <a href="#/overview">why there is none</a>.`
        : leader.node === status.node ? html`This node leads term ${number(status.term)}.`
          : html`Node ${leader.node} leads: <a href=${`${leader.url}/#/operate`}>its console</a>. This node passes changes on to it.`}
        ${members.is_changing ? html` <b class="unknown">A change of the members is under way.</b>` : null}</p>
      <${MemberTable} members=${members} own=${status.node} />
      <h2>Leader and members</h2><div class="actions" key="actions-1">${this.leader(members)}${this.join(members)}</div>
      <h2>Log and state</h2><div class="actions" key="actions-2">${this.log(status)}</div>
      <h2>States of the replicas</h2><${Digests} status=${status} members=${members} missing=${lacks(this.props.me, OPERATE)} />
      <div class="actions" key="actions-3">${this.digest(status, members)}</div>`;
  }

  /** What all actions on the members have. */
  get common() {
    return { me: this.props.me, needs: [MEMBERS], onDone: () => this.reload(),
      unknown: () => "Look at the table of the members above: it shows whether the change has begun." };
  }

  /** Leader, promotion, removal. @param {any} members */
  leader(members) {
    const lead = members.leader?.node;
    const all = members.members;
    const others = all.filter((/** @type {any} */ each) => each.role === "voter" && each.node !== lead);
    const learners = all.filter((/** @type {any} */ each) => each.role === "learner");
    const voters = all.filter((/** @type {any} */ each) => each.role === "voter").length;
    const there = (/** @type {any} */ node) => all.find((/** @type {any} */ each) => each.node === Number(node));
    const so = (/** @type {any} */ answer, /** @type {string} */ now) => (members.is_changing ? `The change has begun at index ${number(answer.index)}, and goes on by itself.` : now);
    return html`
      <${Action} ...${this.common} needs=${[OPERATE]} name="Transfer leadership" about="Another voter leads; writes wait for a moment. Where it is refused the old leader stays."
        blocked=${others.length ? "" : "There is no other voter that could lead."}
        fields=${[{ name: "to", label: "To", kind: "choice", choices: [["", "the voter with the longest log"], ...choices(others)] }]}
        request=${({ to }) => ({ method: "POST", path: "/v1/leader/transfer", json: to ? { to: Number(to) } : {} })}
        shell=${({ to }) => `leader transfer${to ? ` --to ${to}` : ""}`}
        unknown=${() => `The table above shows which node leads now${lead ? `: node ${lead}` : ""}.`}
        done=${(answer) => html`Node ${answer.leader.node} leads term ${number(answer.term)}, after ${number(answer.elapsed_ms)} ms. ${lead === answer.old ? "" : html`<a href=${`${answer.leader.url}/#/operate`}>Its console</a>`}`} />
      <${Action} ...${this.common} name="Promote a learner" about="It votes as soon as it has caught up." blocked=${learners.length ? "" : "There is no learner."}
        fields=${[{ name: "node", label: "Learner", kind: "choice", choices: choices(learners) }]}
        request=${({ node }) => ({ method: "POST", path: "/v1/members", json: { change: "promote", node: Number(node) } })} shell=${({ node }) => `members promote ${node}`}
        done=${(answer) => so(answer, there(answer.node)?.role === "voter" ? `Node ${answer.node} is a voter.` : `Node ${answer.node} becomes a voter once it has caught up.`)} />
      <${Action} ...${this.common} danger name="Remove a node" about="It leaves the cluster; a leader hands over first. Its process may be stopped then."
        fields=${[{ name: "node", label: "Node", kind: "choice", choices: choices(all) }]}
        effect=${async ({ node }) => {
          const left = voters - (there(node)?.role === "voter" ? 1 : 0);
          return { words: html`Node <b>${node}</b> at ${there(node)?.url} leaves. ${number(left)} ${left === 1 ? "voter stays" : "voters stay"}: the cluster bears the loss of ${Math.floor((left - 1) / 2) || "none"}.` };
        }}
        request=${({ node }) => ({ method: "POST", path: "/v1/members", json: { change: "remove", node: Number(node) } })} shell=${({ node }) => `members remove ${node}`}
        done=${(answer) => so(answer, there(answer.node) ? `The change has begun at index ${number(answer.index)}.` : `Node ${answer.node} is no member any more: stop its process.`)} />`;
  }

  /** New disks: they answer with a join file. @param {any} members */
  join(members) {
    const free = Math.max(...members.members.map((/** @type {any} */ each) => each.node)) + 1;
    const [scheme] = members.members[0].url.split(":");
    const peer = { name: "peer", label: "Address for its peers", hint: "HOST:PORT" };
    const url = { name: "url", label: "URL for clients", hint: `${scheme}://HOST:PORT` };
    const lost = (/** @type {any} */ { by, node }) => html`If the table above has node ${by || node}, the change was made, and its join file is lost: “Replace a node” with that number makes one.`;
    const replace = (/** @type {any} */ { node, by, peer, url }) => ({ change: "replace", node: Number(node), ...(by && { by: Number(by) }), ...(peer && { peer }), ...(url && { url }) });
    return html`
      <${Action} ...${this.common} name="Add a node" about="The answer is a join file, from which the new node makes its data folder."
        fields=${[{ name: "node", label: "Number", kind: "number", value: `${free}` }, peer, url, { name: "learner", label: "stays a learner until it is promoted", kind: "check" }]}
        request=${({ node, peer, url, learner }) => ({ method: "POST", path: "/v1/members", json: { change: "add", node: Number(node), peer, url, promote: !learner } })}
        shell=${({ node, peer, url, learner }) => `members add ${node} --peer ${quoted(peer)} --url ${quoted(url)}${learner ? " --learner" : ""}`}
        unknown=${lost} done=${(answer) => html`Node ${answer.node} is a member since index ${number(answer.index)}. <${Join} answer=${answer} />`} />
      <${Action} ...${this.common} danger name="Replace a node" about="A new disk takes the place of a lost one, under the same number or another."
        fields=${[{ name: "node", label: "Node", kind: "choice", choices: choices(members.members) }, { name: "by", label: "Number of the new one", kind: "number", optional: true },
          { ...peer, optional: true }, { ...url, optional: true }]}
        effect=${async ({ node, by }) => ({ words: html`The disk of node <b>${node}</b> counts no more, whatever it holds. ${by ? `Node ${by}` : "Its successor"} copies everything from the others.` })}
        request=${(values) => ({ method: "POST", path: "/v1/members", json: replace(values) })}
        shell=${({ node, by, peer, url }) => `members replace ${node}${by ? ` --by ${by}` : ""}${peer ? ` --peer ${quoted(peer)}` : ""}${url ? ` --url ${quoted(url)}` : ""}`}
        unknown=${lost} done=${(answer) => html`The change has begun at index ${number(answer.index)}. <${Join} answer=${answer} />`} />`;
  }

  /** @param {any} status */
  log(status) {
    const file = `raftlog-${status.node}.backup`;
    return html`
      <${Action} ...${this.common} needs=${[OPERATE]} name="Back up the state" about="Every key as of one index, with sessions, users and hashes of tokens, as a file. The log is not in it: raftlog backup FOLDER takes it too."
        unknown=${undefined} request=${() => ({ method: "GET", path: "/v1/backup", file })} shell=${() => `backup --state-only ${file}`} run=${backup}
        done=${(answer) => html`${size(answer.bytes)} as of index ${number(answer.index)} are in ${answer.file}. The check: <code>raftlog disk check ${answer.file}</code>`} />
      <${Action} ...${this.common} needs=${[OPERATE]} name="Save a snapshot" about="Of this node's state, on its own disk. Nodes do it by themselves when enough log has come; a trim frees space once two are past it."
        request=${() => ({ method: "POST", path: "/v1/snapshot" })} shell=${() => "snapshot"} unknown=${() => "The event “snapshot saved” on the overview has its end."}
        done=${(answer) => `The newest snapshot of node ${answer.node} ends at index ${number(answer.snapshot)}.`} />
      <${Action} ...${this.common} needs=${[OPERATE]} danger name="Trim the log" about="Records below an index go, on every node and for good. Keys stay."
        fields=${[{ name: "before", label: "Oldest index that stays", kind: "number", hint: `above ${status.oldest}` }]}
        effect=${async ({ before }) => {
          const [now, groups] = await Promise.all([this.ask("/v1/status"), this.ask("/v1/consumers?consistency=stale")]);
          const last = Math.min(Number(before), now.applied + 1) - 1;
          const behind = groups.consumers.filter((/** @type {any} */ each) => each.position.next[0] <= last);
          return { words: last < now.oldest ? `Nothing goes: the oldest index is ${number(now.oldest)} already.` : html`<b>${records(last - now.oldest + 1)} go for good</b>, ${number(now.oldest)} to ${number(last)}.
            ${Number(before) > now.applied + 1 ? ` The log ends at ${number(now.applied)}.` : ""}
            ${behind.length ? html` <b class="unknown">${behind.length === 1 ? "A consumer group has" : `${number(behind.length)} consumer groups have`} not read all of them</b>: ${behind.slice(0, 5).map((/** @type {any} */ each) => each.name).join(", ")}${behind.length > 5 ? ", …" : ""}.` : ""}` };
        }}
        request=${({ before }) => ({ method: "POST", path: "/v1/log/trim", json: { before: Number(before) } })} shell=${({ before }) => `log trim --before ${before}`}
        unknown=${() => "The overview shows the oldest record. A trim may simply be sent again."}
        done=${(answer) => `The oldest index is ${number(answer.oldest)}; ${answer.note}.`} />`;
  }

  /** @param {any} status @param {any} members */
  digest(status, members) {
    const path = (/** @type {any} */ { index }) => `/v1/digest${index ? `?index=${index}` : ""}`;
    const others = members.members.filter((/** @type {any} */ each) => each.node !== status.node);
    return html`<${Action} ...${this.common} unknown=${undefined} needs=${["read on log", "read on keys:*", "read on groups:*"]} name="Digest of this node"
      about="A hash of the whole state at the end of an entry. Replicas that applied the same log have the same."
      fields=${[{ name: "index", label: "Index", kind: "number", optional: true, hint: "now" }]}
      request=${(values) => ({ method: "GET", path: path(values) })} shell=${({ index }) => `digest${index ? ` --index ${index}` : ""}`}
      done=${(answer) => html`At index ${number(answer.index)}: <code>${answer.state.count} ${answer.state.xor} ${answer.state.sum_low} ${answer.state.sum_high}</code>
        ${others.length ? html`<br />The same of the other nodes, to compare:${others.map((/** @type {any} */ each) => html`<${Copied} text=${`curl ${each.url}${path(answer)}`} />`)}` : null}`} />`;
  }
}

/** @param {any[]} members @returns {[string, string][]} */
function choices(members) {
  return members.map((each) => [`${each.node}`, `node ${each.node}, ${each.role}, at ${each.url}`]);
}

/** @param {any} props */
function MemberTable({ members, own }) {
  const lead = members.leader?.node;
  const state = (/** @type {any} */ each) => each.given_up ? html`<span class="invalid">given up: ${each.given_up}</span>` : each.catching_up ? "catches up, then votes" : "";
  return html`<div class="wide" tabindex="0" role="region" aria-label="Members"><table><thead><tr><th>node</th><th>role</th><th class="n">durable to</th><th class="n">lag</th><th>for clients</th><th>for peers</th><th>disk</th><th>state</th></tr></thead>
    <tbody>${members.members.map((/** @type {any} */ each) => html`<tr key=${each.node}><td>${each.node}${each.node === own ? html` <span class="faint">(this one)</span>` : null}</td>
      <td>${each.node === lead ? html`<b>leader</b>` : each.role}</td><td class="n">${number(each.match)}</td><td class="n">${number(each.lag)}</td>
      <td>${each.node === own ? each.url : html`<a href=${`${each.url}/#/operate`}>${each.url}</a>`}</td><td>${each.peer}</td><td><code>${each.disk}</code></td><td>${state(each)}</td></tr>`)}</tbody></table></div>`;
}

/** What nodes said of their state at their newest digest points. @param {any} props */
function Digests({ status, members, missing }) {
  if (missing) return html`<p class="unknown">Not shown. The missing grant: <code>${missing}</code></p>`;
  const { newest, replicas, differ } = status.digests;
  const row = (/** @type {any} */ member) => {
    const found = replicas.find((/** @type {any} */ each) => each.node === member.node);
    if (!found) return html`<tr key=${member.node}><td>${member.node}</td><td class="n">–</td><td></td><td class="faint">has not reported one to this node</td></tr>`;
    const verdict = found.node === status.node ? "this node" : found.is_same ? html`<span class="valid">same state</span>`
      : found.is_same === null ? html`<span class="faint">not comparable here yet</span>` : html`<b class="invalid">differs from this node</b>`;
    return html`<tr key=${member.node}><td>${member.node}</td><td class="n">${number(found.point)}</td><td><code title=${found.value}>…${found.value.slice(-16)}</code></td><td>${verdict}</td></tr>`;
  };
  return html`<p class=${differ ? "invalid" : "faint"}>${differ ? `At digest point ${number(differ)} no majority of the replicas has one state: nothing is written until one has (docs/operations.md).`
      : newest ? "Nodes report a digest of their state to each other at digest points, and a node with another state than the majority ends."
        : "No digest point since this node started: one comes every thousand entries (limits.digest_point_entries). “Digest of this node” compares at any index."}</p>
    ${newest ? html`<div class="wide" tabindex="0" role="region" aria-label="States of the replicas"><table><thead><tr><th>node</th><th class="n">digest point</th><th>digest</th><th>compared</th></tr></thead>
      <tbody>${members.members.map(row)}</tbody></table></div>` : null}`;
}

/** The files of a new node, and what to do with them. @param {any} props */
function Join({ answer }) {
  const stem = `join-${answer.node}`;
  return html`<br />Keep both files now: they are shown this once. Then, on its machine:
    <span class="tools"><button type="button" onClick=${() => save(`${stem}.toml`, [answer.join])}>Save ${stem}.toml</button>
      <button type="button" onClick=${() => save(`${stem}-node.toml`, [`cluster_file = "${stem}.toml"\n${answer.settings || ""}`])}>Save ${stem}-node.toml</button></span>
    <${Copied} text=${`raftlog format --join ${stem}.toml --data FOLDER\nraftlog node --config ${stem}-node.toml`} />`;
}

/** Fetches a backup, and gives the browser the file once it is whole. @param {import("./action.js").Request} request @param {(text: string) => void} progress */
async function backup({ path, file = "" }, progress) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), STALL_MS);
  try {
    const answer = await fetch(path, { cache: "no-store", signal: stop.signal });
    if (!answer.ok || !answer.body) {
      const body = await answer.json();
      throw new Problem(answer.status, body.code, body.detail, body);
    }
    const parts = [];
    let bytes = 0;
    for (const reader = answer.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), STALL_MS);
      parts.push(value);
      bytes += value.length;
      if (bytes > BACKUP_BYTES_MAX) throw new Problem(0, "too_large", `the backup has more than ${size(BACKUP_BYTES_MAX)}, which is too much for a browser: take it by the command`);
      progress(`${size(bytes)} so far.`);
    }
    save(file, parts);
    return { bytes, file, index: Number(answer.headers.get("Raftlog-Index")) };
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem(0, "unreachable", stop.signal.aborted ? `nothing came for ${STALL_MS / 1000} s` : "the connection broke off before the end of the backup");
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}
