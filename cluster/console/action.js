/**
 * Changes something: asks for the fields, shows the commands that do the same, asks once, and says how it ended.
 * @module
 */
import { html, Component, Problem, Trouble, send } from "./lib.js";

const TIMEOUT_S = 20; // above the node's own deadline of 10 s, whose answer says more

/**
 * What a form asks for. `kind`: "text" (if not given), "number" (a whole one from 1 on), "choice" (one of `choices`),
 * "many" (any of `choices`; the value is a list), "check" (a boolean), "lines" (a text of several lines). `when(values)`: whether
 * it is asked for at all.
 * @typedef {{name: string, label: string, kind?: string, value?: any, choices?: [string, string][], optional?: boolean,
 *   hint?: string, when?: (values: any) => boolean}} Field
 *
 * A request as `send` takes it; `file`: where curl is to put the answer.
 * @typedef {{method: string, path: string, json?: object, file?: string}} Request
 *
 * What an Action is given:
 * - `name`: what the button says, as in "Delete the group"; `about`: what it does, in a sentence
 * - `danger`: what it takes away does not come back
 * - `fields`: of the form; none: there is only the button. Their content outlives a refusal and a login
 * - `me`: `/v1/access/me`; `needs`: the grants without which the form is disabled; `blocked`: another reason why it is
 * - `effect(values)`: promises `{words, values}`, asked of the node before the confirmation: what will happen, and values
 *   that take the place of the form's from then on, or are added to them
 * - `request(values, made)`: the Request. `made` is what `prepare(values)` promised just before; undefined: for the curl
 * - `shell(values)`: the words after `raftlog`, joined
 * - `run(request, progress)`: sends it in another way; `progress(text)` shows how far it is. Promises the answer
 * - `done(answer, values, made)`: the words about the answer
 * - `unknown(values, made)`: where to look when no answer came. Not given: it only reads, so nothing has changed
 * - `onDone()`: after it is done
 * @typedef {{name: string, about?: any, danger?: boolean, fields?: Field[], me?: any, needs?: string[], blocked?: any,
 *   effect?: (values: any) => Promise<{words: any, values?: object}>, prepare?: (values: any) => Promise<any>, request: (values: any, made?: any) => Request,
 *   shell: (values: any) => string, run?: (request: Request, progress: (text: string) => void) => Promise<any>,
 *   done: (answer: any, values: any, made?: any) => any, unknown?: (values: any, made?: any) => any,
 *   onDone?: () => void}} ActionProps
 */

/**
 * One action: form, confirmation, progress, outcome. Its props are ActionProps. Give the element around it a `key`: else
 * Preact may make it anew, without its content, when an element before it changes its kind.
 */
export class Action extends Component {
  /** @param {ActionProps} props */
  constructor(props) {
    super(props);
    /** @type {any} step: form | confirm | sent | done | refused | unknown; known: what `effect` found */
    this.state = { step: "form", values: initial(props.fields), known: null };
    /** @type {HTMLElement | null} */
    this.button = null;
    /** @type {number | undefined} */
    this.clock = undefined;
  }

  componentWillUnmount() {
    clearInterval(this.clock);
  }

  /** The form's values, with what `effect` found. A choice that is gone gives way to the first one. */
  values() {
    const values = { ...this.state.values };
    for (const { name, kind, choices = [] } of this.props.fields || []) {
      if (kind === "choice" && !choices.some(([each]) => each === values[name])) values[name] = choices[0]?.[0] ?? "";
    }
    return { ...values, ...this.state.known?.values };
  }

  /** Opens the confirmation, with what will happen. */
  async ask() {
    const { effect } = this.props;
    this.setState({ step: "confirm", known: null, problem: null });
    try {
      this.setState({ known: effect ? await effect(this.values()) : {} });
    } catch (problem) {
      this.refuse(problem, "confirm");
    }
  }

  /** Sends the request, once. */
  async go() {
    const { prepare, request, run, unknown, onDone } = /** @type {ActionProps} */ (this.props);
    const values = this.values();
    const began = Date.now();
    this.setState({ step: "sent", seconds: 0, progress: "", problem: null, made: undefined });
    this.clock = setInterval(() => this.setState({ seconds: Math.round((Date.now() - began) / 1000) }), 1000);
    try {
      const made = await prepare?.(values);
      this.setState({ made });
      const asked = request(values, made);
      const progress = (/** @type {string} */ text) => this.setState({ progress: text });
      const answer = run ? await run(asked, progress) : await send(asked.method, asked.path, { json: asked.json, timeoutMs: TIMEOUT_S * 1000 });
      this.setState({ step: "done", answer });
      onDone?.();
    } catch (problem) {
      const isUnknown = unknown && problem instanceof Problem && (problem.status === 0 || problem.answer.outcome === "unknown");
      this.refuse(problem, isUnknown ? "unknown" : "refused");
    } finally {
      clearInterval(this.clock);
    }
  }

  /** Shows a problem; after the end of a login the confirmation waits for the next one. @param {any} problem @param {string} step */
  refuse(problem, step) {
    this.setState({ problem, step: problem.status === 401 ? "confirm" : step });
  }

  /** Back to the form. @param {boolean} [empty] */
  close(empty) {
    const values = empty ? initial(this.props.fields) : this.state.values;
    this.setState({ step: "form", values, known: null, problem: null, answer: null, made: undefined }, () => this.button?.focus());
  }

  render() {
    const { name, about, fields = [], needs = [], me, blocked } = this.props;
    const { step } = this.state;
    const values = this.values();
    const missing = needs.map((/** @type {string} */ each) => lacks(me, each)).find(Boolean);
    const set = (/** @type {Field} */ field, /** @type {any} */ value) => this.setState({ values: { ...this.state.values, [field.name]: value } });
    const submit = (/** @type {any} */ event) => {
      event.preventDefault();
      this.ask();
    };
    return html`<section class="action" aria-label=${name}>
      <h3>${name}</h3>
      ${about ? html`<p class="faint">${about}</p>` : null}
      <form onSubmit=${submit}><fieldset disabled=${Boolean(missing || blocked || step !== "form")}>
        ${fields.filter((/** @type {Field} */ each) => each.when?.(values) ?? true).map((/** @type {Field} */ each) => html`<${Input} key=${each.name} field=${each} value=${values[each.name]} set=${(/** @type {any} */ value) => set(each, value)} />`)}
        <button type="submit" ref=${(/** @type {any} */ button) => { this.button = button; }}>${name} …</button></fieldset></form>
      ${missing ? html`<p class="unknown">Not permitted. The missing grant: <code>${missing}</code></p>` : blocked ? html`<p class="unknown">${blocked}</p>` : null}
      ${step === "form" ? null : this.panel()}</section>`;
  }

  panel() {
    const { name, danger, done, unknown, request, shell, me } = this.props;
    const { step, known, problem, answer, made, seconds, progress } = this.state;
    const values = this.values();
    const retry = () => (step === "confirm" ? this.ask() : this.go());
    if (step === "confirm") {
      const waits = known === null;
      return html`<${Panel} key="confirm" label=${`Confirm: ${name}`} onEscape=${() => this.close()}>
        ${waits && !problem ? html`<p class="faint">Asking the node what will happen …</p>` : null}
        ${known?.words ? html`<p>${known.words}</p>` : null}
        ${waits ? null : html`<p class="faint">The same from a terminal:</p>
          <${Copied} text=${`raftlog -e ${location.origin} ${shell(values)}`} /><${Copied} text=${curl(request(values), me)} />`}
        <${Trouble} problem=${problem} retry=${waits ? retry : undefined} />
        <p class="tools"><button type="button" class=${danger ? "yes danger" : "yes"} disabled=${waits} onClick=${() => this.go()}>Yes, ${name[0].toLowerCase() + name.slice(1)}</button>
          <button type="button" onClick=${() => this.close()}>Cancel</button></p></${Panel}>`;
    }
    if (step === "sent") {
      return html`<${Panel} key="sent" label=${name}><p role="status">${progress || `Sent. The answer takes ${seconds} s so far, and may take ${TIMEOUT_S}.`}</p></${Panel}>`;
    }
    if (step === "done") {
      return html`<${Panel} key="done" kind="done" label=${name}><div role="status"><b class="valid">Done.</b> ${done(answer, values, made)}</div>
        <p class="tools"><button type="button" onClick=${() => this.close(true)}>Close</button></p></${Panel}>`;
    }
    const leader = problem.answer?.leader?.node !== problem.answer?.node && problem.answer?.leader;
    const again = problem.status === 0 || problem.answer?.retryable;
    return html`<${Panel} key=${step} kind=${step} label=${name}>
      <p role="alert">${step === "unknown"
        ? html`<b class="unknown">Unknown.</b> It may have been carried out: ${problem.message}.`
        : html`<b class="invalid">${problem.status ? "Refused." : "No answer."}</b> Nothing was changed: ${problem.message}${problem.missing ? html`. The missing grant: <code>${problem.missing}</code>` : null}`}</p>
      ${step === "unknown" ? html`<div>${unknown(values, made)}</div>` : null}
      ${leader ? html`<p>Node ${leader.node} leads: <a href=${leader.url + location.hash}>its console</a></p>` : null}
      <p class="tools">${step === "refused" && again ? html`<button type="button" onClick=${retry}>Try again</button>` : null}
        <button type="button" onClick=${() => this.close()}>Back to the form</button></p></${Panel}>`;
  }
}

/** A part of an action that takes the focus when it appears. */
class Panel extends Component {
  /** @type {HTMLElement | null} */
  box = null;

  componentDidMount() {
    this.box?.focus();
    this.box?.scrollIntoView({ block: "nearest" });
  }

  render() {
    const { label, kind, onEscape, children } = this.props;
    return html`<div class="panel ${kind || ""}" role="group" aria-label=${label} tabindex="-1" ref=${(/** @type {any} */ box) => { this.box = box; }}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && onEscape?.()}>${children}</div>`;
  }
}

/** @param {{field: Field, value: any, set: (value: any) => void}} props */
function Input({ field, value, set }) {
  const { kind, label, choices = [], optional, hint } = field;
  const typed = (/** @type {any} */ event) => set(event.target.value);
  if (kind === "check") {
    return html`<label class="check"><input type="checkbox" checked=${value} onChange=${(/** @type {any} */ event) => set(event.target.checked)} /> ${label}</label>`;
  }
  if (kind === "many") {
    const turn = (/** @type {string} */ name) => set(value.includes(name) ? value.filter((/** @type {string} */ each) => each !== name) : [...value, name]);
    return html`<div role="group" aria-label=${label}><span class="faint">${label}</span>${choices.map(([name, text]) => html`
      <label class="check" key=${name}><input type="checkbox" checked=${value.includes(name)} onChange=${() => turn(name)} /> ${text}</label>`)}</div>`;
  }
  return html`<label><span class="faint">${label}${optional ? " (may be empty)" : ""}</span>${
    kind === "choice" ? html`<select value=${value} onChange=${typed}>${choices.map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}</select>`
    : kind === "lines" ? html`<textarea rows="4" value=${value} required=${!optional} placeholder=${hint} onInput=${typed}></textarea>`
    : kind === "number" ? html`<input type="number" min="1" max=${Number.MAX_SAFE_INTEGER} value=${value} required=${!optional} placeholder=${hint} onInput=${typed} />`
    : html`<input type="text" value=${value} required=${!optional} placeholder=${hint} autocomplete="off" spellcheck=${false} onInput=${typed} />`}</label>`;
}

/** @param {Field[]} [fields] */
function initial(fields = []) {
  const blank = (/** @type {Field} */ field) => (field.kind === "check" ? false : field.kind === "many" ? [] : field.choices?.[0]?.[0] ?? "");
  return Object.fromEntries(fields.map((each) => [each.name, each.value ?? blank(each)]));
}

/** A text to copy: a command, a token. props: {text, label?} */
export class Copied extends Component {
  /** @type {HTMLElement | null} */
  box = null;

  async copy() {
    try {
      await navigator.clipboard.writeText(this.props.text);
      this.setState({ note: "Copied" });
    } catch { // no TLS, or the browser forbids it
      if (this.box) getSelection()?.selectAllChildren(this.box);
      this.setState({ note: "Selected: copy it now" });
    }
  }

  render() {
    const { text, label = "command" } = this.props;
    return html`<div class="copied"><pre ref=${(/** @type {any} */ box) => { this.box = box; }}>${text}</pre>
      <button type="button" aria-label=${`Copy the ${label}`} onClick=${() => this.copy()}>${this.state.note || "Copy"}</button></div>`;
  }
}

/** The request as a command of curl, with the user's own proof. @param {Request} request @param {any} me */
function curl({ method, path, json, file }, me) {
  const proof = !me?.is_on ? "" : me.named_by === "token" ? ' -H "Authorization: Bearer $(cat "$RAFTLOG_TOKEN_FILE")"' : ' --cert "$RAFTLOG_CERTIFICATE" --key "$RAFTLOG_KEY"';
  const trust = location.protocol === "https:" ? ' --cacert "$RAFTLOG_CA"' : "";
  const verb = method === "GET" || (method === "POST" && json) ? "" : ` -X ${method}`;
  return `curl${verb}${file ? ` -o ${quoted(file)}` : ""}${trust}${proof} ${quoted(location.origin + path)}${json ? ` -d ${quoted(JSON.stringify(json))}` : ""}`;
}

/** A word of a shell's command. @param {string | number} text */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(`${text}`) ? `${text}` : `'${`${text}`.replaceAll("'", "'\\''")}'`;
}

/** The text of a grant for one key or group. @param {string} verb @param {string} resource @param {string} name */
export function grantOf(verb, resource, name) {
  const characters = [...new TextEncoder().encode(name)].map((byte) => String.fromCharCode(byte)).join("");
  const escaped = /[^\w\-/:=,@+~.]|\.(?=\.)|(?<=\.)\.|^\.|\.$/g;
  const code = (/** @type {string} */ each) => `%${each.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`;
  return `${verb} on ${resource}:${characters.replace(escaped, code)}`;
}

/**
 * The grant, if the user lacks it; else "". While the user is not known nothing is missing: the node decides.
 * @param {any} me `/v1/access/me` @param {string} grant one on the log or the cluster, or of `grantOf`
 */
export function lacks(me, grant) {
  const [verb, resource, name] = parts(grant);
  const gives = (/** @type {string} */ each) => {
    const [has, on, range] = parts(each);
    return on === resource && (has === verb || (has === "operate" && verb === "watch")) && (!name || covers(range, bytesOf(name)));
  };
  return !me?.is_on || me.grants.some(gives) ? "" : grant;
}

/** Verb, resource, and the range of keys or groups. @param {string} grant */
function parts(grant) {
  const [verb, , place] = grant.split(" ");
  const [resource] = place.split(":", 1);
  return [verb, resource, place.slice(resource.length + 1)];
}

/** @param {string} range @param {string} name as `bytesOf` has it */
function covers(range, name) {
  const [start, end] = range.split("..");
  if (end !== undefined) return bytesOf(start) <= name && (!end || name < bytesOf(end));
  return range.endsWith("*") ? name.startsWith(bytesOf(range.slice(0, -1))) : name === bytesOf(range);
}

/** Bytes as characters, so that they compare as in the node. @param {string} text */
function bytesOf(text) {
  return text.replace(/%([0-9A-Fa-f]{2})/g, (_, code) => String.fromCharCode(parseInt(code, 16)));
}
