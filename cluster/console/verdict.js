/**
 * Says in one sentence which node leads and whether anything is wrong, with the causes and what to do about each.
 * @module
 */
import { html, number } from "./lib.js";

const RUNS = "See whether that node runs (raftlog status), then look at the network between both.";
/** @type {Record<string, string>} what to do, where the words of the cause do not say it */
const TO_DO = {
  log_differs: "Keep its data folder: it may have the only copy.",
  disk_hangs: "Look at its disk, and at the log of its kernel.",
  no_room: "Free disk space on a majority of the voters, or trim the log (raftlog log trim).",
  disk_full: "Free disk space there, or trim the log (raftlog log trim).",
  link_one_way: "Look at the firewall, and at the addresses of both nodes (raftlog members list).",
  link_down: RUNS, link_silent: RUNS, vote_unanswered: RUNS, follower_silent: RUNS,
  not_following: "Ask all nodes: raftlog explain.",
  no_majority: "Start the missing nodes; the log goes on once a majority of the voters is connected.",
  election: "Wait a second or two: an election is under way.",
};
/** Causes that pass by themselves: they are no trouble. */
const PASSING = new Set(["refused", "client_refused", "not_committed", "lags", "handed_over", "fetches_older", "members_changing", "older_version", "election"]);

/** What the title of the tab says; empty: nothing is wrong. @param {any} cluster @param {any} explained null: the user may not see it */
export function trouble(cluster, explained) {
  if (!cluster.leader) return "no leader";
  return cluster.is_cut_off || explained?.causes.some((/** @type {any} */ cause) => !PASSING.has(cause.code)) ? "trouble" : "";
}

/** @param {any} props */
export function Verdict({ cluster, explained }) {
  const wrong = trouble(cluster, explained);
  const kind = !cluster.leader ? "bad" : wrong ? "warn" : "";
  const causes = (explained?.causes || []).filter((/** @type {any} */ cause) => cause.code !== "not_committed"); // on its way
  const summary = !cluster.leader ? "There is no leader, as far as this node knows." : `Node ${cluster.leader.node} leads term ${number(cluster.term)}.`;
  const told = new Set();
  const first = (/** @type {string} */ code) => {
    const text = TO_DO[code];
    if (!text || told.has(text) || (code === "election" && told.size)) return null;
    told.add(text);
    return html` <span class="todo">${text}</span>`;
  };
  return html`<section class="verdict ${kind}" aria-label="State of the cluster">
    <span class=${kind === "bad" ? "invalid" : kind ? "unknown" : "valid"} aria-hidden="true">${kind ? "▲" : "●"}</span>
    <div><b>${summary}${wrong || !explained ? "" : " Nothing is wrong."}</b>
      ${causes.length ? html`<ul>${causes.map((/** @type {any} */ cause) => html`
        <li class=${PASSING.has(cause.code) ? "faint" : ""}>${cause.words}.${first(cause.code)}</li>`)}</ul>` : null}
    </div></section>`;
}
