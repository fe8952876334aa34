"use strict";
// What the page shows, and when: status.json every 3 s, recent.json every 10 s. All text goes in as text, never as HTML.
// If the daemon gives no answer, or one that cannot be shown, the figures stay, greyed, and the page says since when.
// Times are UTC, as `tiered status` prints them.

const STATUS_EVERY_MS = 3000, RECENT_EVERY_MS = 10000, ANSWER_MS = 8000;
const OLD_MS = STATUS_EVERY_MS + ANSWER_MS + 4000;  // an answer that is older says nothing of now, as after this machine slept
const LEVELS = { ok: "nothing known to be wrong", lost: "data is lost", behind: "behind", stuck: "needs you", unknown: "not known" };
const STATES = {
  HELD: "under way", WAITING: "in the late-upload grace", CLAIMABLE: "due for recovery", EXHAUSTED: "failed too often",
  UNREADABLE: "cannot be read", NEWER: "of newer software", PARKED: "stuck", KEPT: "over, kept for the change feed",
};
const SOURCES = { recovery: "Recovery", audit: "Audit", feed: "Change feed" };
const UNITS = { recovery: "entries", audit: "blobs", feed: "updates" };
const READS = { feed: "rows" };  // what a first pass reads, where that is not the unit

let status = null, recent = null, answeredAt = null, lost = false, broken = "";
const drawn = {};  // section -> what was last shown there: what did not change keeps its focus and its selection

const byId = (id) => document.getElementById(id);

function node(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

function show(id, content, children) {
  const said = JSON.stringify(content);
  if (drawn[id] === said) return;
  drawn[id] = said;
  const place = byId(id), focused = place.contains(document.activeElement) ? document.activeElement.dataset.copies : null;
  place.replaceChildren(...children());
  if (focused) place.querySelector(`[data-copies="${CSS.escape(focused)}"]`)?.focus();
}

// --- numbers and times ----------------------------------------------------------------------------

const whole = (number) => number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en");
const plural = (number, one, many) => `${whole(number)} ${number === 1 ? one : many}`;

function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  return perSecond === 0 ? "0" : perSecond >= 100 ? whole(perSecond) : perSecond >= 0.1 ? perSecond.toFixed(1) : perSecond.toFixed(3);
}

function long(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  for (const [unit, size] of units) if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${power ? count.toFixed(1) : count} ${units[power]}`;
}

const iso = (ms) => new Date(ms).toISOString();
const clock = (ms) => iso(ms).slice(11, 19);
const isToday = (ms) => iso(ms).slice(0, 10) === iso(Date.now()).slice(0, 10);
const shortly = (ms) => isToday(ms) ? clock(ms) : iso(ms).slice(0, 16).replace("T", " ");
const moment = (ms) => `${shortly(ms)} UTC`;
function before(seconds) {  // the minute, so long before the answer that is shown
  const ms = answeredAt - seconds * 1000;
  return `${iso(ms).slice(isToday(ms) ? 11 : 0, 16).replace("T", " ")} UTC`;
}

// --- commands to copy -----------------------------------------------------------------------------

function command(text) {
  // A word goes to the next line as a whole, and breaks only if it is longer than a line.
  const code = node("code", {}, ...text.split(" ").flatMap((word) => [node("span", {}, word), " "]).slice(0, -1));
  const button = node("button", { type: "button", "data-copies": text, "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", () => copy(text, code, button));
  return node("div", { class: "command" }, code, button);
}

async function copy(text, code, button) {
  let copied = false;
  try {
    await navigator.clipboard.writeText(text);
    copied = true;
  } catch {  // a browser allows the clipboard on https and on localhost only
    const field = node("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    try { copied = document.execCommand("copy"); } catch { copied = false; }
    field.remove();
    button.focus();
  }
  if (!copied) getSelection().selectAllChildren(code);
  button.textContent = copied ? "Copied" : "Ctrl+C";
  speak(copied ? `Copied: ${text}` : "The text is selected: press Ctrl and C.");
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function speak(sentence) { byId("spoken").textContent = sentence; }

// --- the answer -----------------------------------------------------------------------------------

function showAnswer() {
  const answer = lost ? lostAnswer() : status;
  const place = byId("answer");
  if (drawn.headline !== undefined && drawn.headline !== answer.headline) speak(answer.headline);
  drawn.headline = answer.headline;
  place.dataset.level = answer.level;
  byId("level").textContent = LEVELS[answer.level] || answer.level;
  byId("headline").textContent = answer.headline;
  const stuck = status?.stuck?.count;
  document.title = `${stuck && !lost && answer.level !== "lost" ? `${stuck} stuck` : LEVELS[answer.level] || answer.level} · tiered recovery`;
  byId("problems").hidden = !answer.problems?.length;
  show("problems", answer.problems, () => (answer.problems || []).map((problem) => node("li", {}, problem)));
  show("orders", answer.orders, () => orders(answer.orders || [], answer.level));
}

const tiered = (rest) => `${status?.tiered || "tiered"} ${rest}`;

function lostAnswer() {
  const known = status?.level === "lost", no = broken ? "no answer that this page can show" : "no answer";
  return {
    level: known ? "lost" : "unknown", problems: broken ? [broken] : [],
    headline: `${known ? "DATA IS LOST. " : ""}The daemon gives ${no}${answeredAt === null ? "" : ` since ${moment(answeredAt)}`}.`,
    orders: [
      { why: "See whether recovery keeps up without this daemon.", type: tiered("status") },
      { why: "See why it ended in its log, and start it again.", type: null },
    ],
  };
}

function orders(list, level) {
  if (!list.length) return [node("p", { class: "nothing" }, level === "ok" ? "Nothing to do." : "")];
  return [
    node("p", { class: "todo-title" }, "What to do"),
    node("ol", { class: "todo" }, ...list.map((order) => node("li", {}, order.why, order.type ? command(order.type) : null))),
  ];
}

function watch() {  // after this machine slept, or where the browser holds the page's work back, the answer is old at once
  if (!lost && answeredAt !== null && Date.now() - answeredAt > OLD_MS) {
    lost = true;
    showStatus();
  }
  showFreshness();
}

function showFreshness() {
  const place = byId("fresh");
  if (answeredAt === null) { place.textContent = lost ? "no answer yet" : "waiting for the first answer"; return; }
  const since = (Date.now() - answeredAt) / 1000;
  if (lost) place.textContent = `no answer for ${long(since)}`;
  else if (!status.sample || status.sample.age_s === null) place.textContent = "no figures yet";
  else place.textContent = `figures are ${long(status.sample.age_s + since)} old`;
}

// --- figures --------------------------------------------------------------------------------------

function showTiles() {
  const source = status.sources?.recovery, total = source?.total, verdict = source?.verdict;
  const known = total && total.outstanding_values !== null && total.processed_values !== null;
  const lag = known ? total.outstanding_values - total.processed_values : null;
  const alive = status.daemons ? status.daemons.filter((each) => each.alive).length : null;
  const silent = status.daemons ? status.daemons.filter((each) => !each.alive && !each.ended).length : 0;
  const kind = verdict?.kind || "unknown";
  const stuck = status.stuck?.count, old = document.body.classList.contains("old");
  const tiles = [
    ["Recovery", kind, "", verdict?.caught_up_in_s ? `done in about ${long(verdict.caught_up_in_s)}` :
      (source?.level ?? "unknown") === "unknown" ? "takes two reports" : "", source?.level || null],
    ["Stuck entries", `${whole(stuck)}${status.stuck && !status.stuck.complete && stuck !== null ? "+" : ""}`, "", stuck ? "each waits for you" : "", stuck ? "stuck" : stuck === 0 && status.stuck.complete ? "ok" : null],
    auditTile(),
    [old ? "Daemons alive then" : "Daemons alive", whole(alive), "", silent ? `${silent} silent` : "", alive === 0 ? "stuck" : null],
    ["Backlog, entries", whole(lag ?? (status.entries?.complete ? status.entries.due : null)), "", status.entries?.oldest_age_s == null ? "" : `oldest change ${long(status.entries.oldest_age_s)}`],
    ["Comes in", rate(verdict?.inflow_per_s), "per s", ""],
    ["Is dealt with", rate(verdict?.drain_per_s), "per s", known ? `${whole(total.processed_values)} so far` : ""],
    ...feedTile(),
    ...contentTiles(),
    ...(status.disk ? [["Free space", ...bytes(status.disk.free_bytes).split(" "), `of ${bytes(status.disk.size_bytes)}${status.disk.read_only ? ", read-only" : status.disk.full ? ", full: puts fail" : ""}`, status.disk.full || status.disk.read_only ? "stuck" : null]] : []),
    ...(status.daemon?.memory_bytes ? [["Memory of this daemon", ...bytes(status.daemon.memory_bytes).split(" "), "resident"]] : []),
  ];
  show("tiles", tiles, () => tiles.map(([name, value, unit, more, tone]) => node("div", {},
    node("dt", {}, name),
    node("dd", { class: `number${tone ? " tone" : ""}${/^[a-z]/.test(value) ? " word" : ""}`, "data-level": tone }, value, unit && value !== "–" ? node("small", {}, ` ${unit}`) : null),
    node("dd", { class: "more" }, more || ""),
  )));
}

function auditTile() {
  const audits = status.audits, whole = audits?.find((each) => each.complete && !each.scope);
  const lost = (level) => (audits || []).filter((each) => each.level === level).reduce((sum, each) => sum + each.lost, 0);
  if (lost("lost")) return ["Lost objects", lost("lost").toLocaleString("en"), "", "found by audits", "lost"];
  if (lost("unknown")) return ["Perhaps lost objects", lost("unknown").toLocaleString("en"), "", "by an audit that is doubtful", "unknown"];
  if (!whole) return ["Last audit", audits ? "none" : "–", "", audits?.length ? "not of the whole store" : audits ? "nobody looked for losses" : "", null];
  return ["Last audit", whole.state, "", `ended ${long(whole.age_s)} ago`, whole.level === "ok" ? null : whole.level];
}

function feedTile() {
  const feed = status.feed;
  if (!feed) return [];
  return [["Change feed", feed.state, "", feed.frontier_age_s === null ? "nothing is published yet" : `complete up to ${long(feed.frontier_age_s)} ago`, feed.level]];
}

function contentTiles() {
  const held = status.contents;
  if (!held) return [];
  const then = `by the audit ${long(held.age_s)} ago`;
  return [
    ...(held.live_blobs === null ? [] : [["Objects with a blob", whole(held.live_blobs), "", `${bytes(held.live_bytes)}, ${then}`]]),
    ["Blobs in all", whole(held.blobs), "", `${held.blob_bytes === null ? "" : `${bytes(held.blob_bytes)}, `}${then}`],
  ];
}

function showBars() {
  const sources = Object.entries(status.sources || {}).filter(([, { total }]) => !total.snapshot_committed && total.snapshot_records_known !== 0);
  byId("snapshots").hidden = !sources.length;
  const bars = sources.map(([name, { total, percentage: percent }]) => {
    const known = total.snapshot_records_known, progress = total.snapshot_progress, unit = READS[name] || UNITS[name] || "records";
    const about = total.snapshot_known_estimated ? "about " : "";
    const said = percent === null ? `not known yet${progress === null ? "" : `: ${whole(progress)} ${unit} read so far`}` :
      `${about}${Math.floor(percent)} %: at least ${whole(progress)} of ${about}${whole(known)} ${unit}`;
    return { name: SOURCES[name] || name, percent, said, estimated: total.snapshot_known_estimated };
  });
  show("bars", bars, () => bars.map((bar) => {
    const fill = node("i");
    fill.style.width = `${bar.percent ?? 0}%`;
    return node("div", { class: "bar" },
      node("p", {}, node("b", {}, bar.name), node("span", { class: "muted" }, bar.said)),
      node("div", {
        class: `track${bar.estimated ? " estimated" : ""}`, role: "progressbar", "aria-label": `First pass of ${bar.name}`, "aria-valuemin": 0,
        "aria-valuemax": 100, "aria-valuenow": bar.percent === null ? null : Math.floor(bar.percent), "aria-valuetext": bar.said,
      }, fill),
    );
  }));
}

function showStuck() {
  const stuck = status.stuck, content = [stuck, status.show_objects, stuck?.entries.map((entry) => sinceWhen(entry))];
  show("stuck-list", content, () => {
    if (!stuck || stuck.count === null) return [node("p", { class: "muted" }, "Not known: the changelog could not be read.")];
    if (!stuck.count) return [node("p", { class: "muted" }, stuck.complete ? "None. Nothing waits for an operator." : "None so far; not all entries were looked at.")];
    const more = stuck.count - stuck.entries.length;
    return [
      node("ul", { class: "items" }, ...stuck.entries.map(stuckEntry)),
      more > 0 ? node("p", { class: "muted" }, `And ${whole(more)} more: `, command(tiered("log list --stuck"))) : null,
      !status.show_objects && stuck.entries.some((entry) => entry.object) ?
        node("p", { class: "muted" }, "Names of objects are hidden here (daemon.show_objects). tiered log show names them.") : null,
    ].filter(Boolean);
  });
}

function sinceWhen(entry) {
  if (entry.since === null) return null;
  const since = Date.parse(entry.since);
  return `stuck since ${moment(since)} (${long(Math.max(0, (Date.now() - since) / 1000))})`;
}

function stuckEntry(entry) {
  const facts = [sinceWhen(entry), entry.attempt ? plural(entry.attempt, "attempt", "attempts") : null];
  return node("li", {},
    node("p", { class: "what" }, entry.object && entry.object !== "…" ? entry.object : node("code", {}, entry.id)),
    node("p", { class: "muted" }, facts.filter(Boolean).join(" · ")),
    node("p", { class: "error" }, entry.error),
    entry.advice ? node("p", {}, entry.advice) : null,
    entry.type.endsWith(" --all") ? null : command(entry.type.replace(" log retry ", " log show ")),
    command(entry.type),
  );
}

function showFeed() {
  const feed = status.feed;
  byId("feed").hidden = !feed;
  if (!feed) return;
  show("feed-shown", feed, () => {
    const level = feed.level, kept = feed.kept;
    const facts = [
      feed.frontier ? `complete up to ${moment(Date.parse(feed.frontier))}, ${long(feed.frontier_age_s)} ago` : "no progress is published yet",
      feed.records === null ? null : `${plural(feed.records, "update", "updates")} committed`,
      feed.live === null ? null : plural(feed.live, "live reference", "live references"),
      feed.generation === null ? null : `generation ${feed.generation}, epoch ${feed.epoch}`, feed.gap ? "it has a gap" : null,
    ];
    return [
      node("p", {}, node("span", { class: `dot tone${level === "ok" ? "" : " hollow"}`, "data-level": level }), node("b", {}, feed.state), feed.why ? `: ${feed.why}` : ""),
      node("p", { class: "muted" }, facts.filter(Boolean).join(" · ")),
      node("p", { class: "muted" }, kept === null ? "What waits for it is not known." :
        `${kept.entries === null ? "Too many entries to count wait" : `${kept.estimated ? "About " : ""}${plural(kept.entries, "entry waits", "entries wait")}`} for it${kept.age_s === null ? "" : `, the oldest for ${long(kept.age_s)}`}; at most ${long(kept.hold_max_s)}.`),
      node("ul", { class: "items" }, ...feed.sinks.map(feedSink)),
    ];
  });
}

function feedSink(sink) {
  const failing = sink.failing_since !== null, level = !sink.known ? "unknown" : failing ? "stuck" : "ok";
  const facts = !sink.known ? ["its position could not be read"] : [
    sink.acknowledged ? `has all up to ${moment(Date.parse(sink.acknowledged))}` : "has acknowledged nothing of this generation",
    sink.behind_records === null ? null : `${plural(sink.behind_records, "update", "updates")} behind${sink.behind_s ? ` and ${long(sink.behind_s)}` : ""}`,
    failing ? `fails since ${moment(Date.parse(sink.failing_since))}` : null,
    sink.unasked,
  ];
  return node("li", {},
    node("p", {}, node("span", { class: `dot tone${level === "ok" ? "" : " hollow"}`, "data-level": level }), node("b", {}, sink.name)),
    node("p", { class: "muted" }, facts.filter(Boolean).join(" · ")),
    failing && sink.error ? node("p", { class: "error" }, sink.error) : null);
}

function showDaemons() {
  const daemons = status.daemons, old = document.body.classList.contains("old");
  show("daemons", [daemons, status.daemon, old], () => {
    if (!daemons) return [node("p", { class: "muted" }, "Not known: the changelog could not be read.")];
    if (!daemons.length) return [node("p", { class: "muted" }, "None has written to the changelog within a day.")];
    const sorted = [...daemons].sort((one, other) => other.alive - one.alive || one.seen_s_ago - other.seen_s_ago);
    return [node("ul", { class: "items" }, ...sorted.slice(0, 20).map((each) => node("li", {},
      node("p", {}, node("span", { class: `dot tone${each.alive ? "" : " hollow"}`, "data-level": each.alive ? "ok" : each.ended ? "unknown" : "behind" }),
        node("b", {}, each.instance), each.instance === status.daemon?.instance ? " (shows this page)" : ""),
      node("p", { class: "muted" }, `${each.alive ? old ? "alive then" : "alive" : each.ended ? "ended in order" : "silent: probably killed, or out of reach"}, seen ${long(each.seen_s_ago)} ${old ? "earlier" : "ago"}`),
    ))), sorted.length > 20 ? node("p", { class: "muted" }, `and ${sorted.length - 20} more`) : ""];
  });
}

function showServices() {
  show("services", [status.services, status.calls_over_s, status.daemon.odd_files], () => [node("ul", { class: "items" }, ...(status.services || []).map((service) => {
    const level = service.answers === null ? "unknown" : service.answers ? "ok" : "stuck";
    const said = service.answers === null ? "not asked yet" : service.answers ? "answers" : `does not answer, since ${before(service.for_s)} (${long(service.for_s)})`;
    const over = service.last_outage, was = over && `${service.answers ? "its last outage" : "the one before"}: ${before(over.began_s_ago)} to ${before(over.ended_s_ago)} (${long(over.began_s_ago - over.ended_s_ago)})`;
    const late = service.calls === null || service.calls === undefined ? null :
      `this daemon called it ${plural(service.calls, "time", "times")} in ${long(status.calls_over_s)}; ${service.failed ? `${whole(service.failed)} failed` : "none failed"}`;
    return node("li", {},
      node("p", {}, node("span", { class: `dot tone${service.answers ? "" : " hollow"}`, "data-level": level }), node("b", {}, service.name), ` ${said}`),
      late ? node("p", { class: "muted" }, late) : null,
      was ? node("p", { class: "muted" }, was) : null,
      service.error ? node("p", { class: "error" }, service.error) : null);
  })), node("p", { class: "muted" }, "What fails for the callers of your services is not known here: the metrics of those processes tell (tiered_operations_total).",
    status.daemon.odd_files ? ` ${plural(status.daemon.odd_files, "file", "files")} below the store's directory cannot be dealt with: see the log.` : "")]);
}

function showEntries() {
  const entries = status.entries;
  show("entries", entries, () => {
    if (!entries || !Object.keys(entries.by_state).length) return [node("p", { class: "muted" }, "Not known: the changelog could not be read.")];
    const open = Object.entries(entries.by_state).filter(([, number]) => number);
    if (!open.length) return [node("p", { class: "muted" }, entries.complete ? "None is open." : "None so far; not all were counted.")];
    const bounds = entries.ages_s || [];
    const heads = [...bounds.map((bound) => `< ${long(bound)}`), bounds.length ? "older" : null].filter(Boolean);
    return [node("table", { class: "stacked" },
      node("thead", {}, node("tr", {}, node("th", { scope: "col" }, "state"), node("th", { scope: "col", class: "n" }, "all"), ...heads.map((head) => node("th", { scope: "col", class: "n" }, head)))),
      node("tbody", {}, ...open.map(([state, number]) => node("tr", {},
        node("th", { scope: "row" }, STATES[state] || state.toLowerCase()), cell(number, "all"),
        ...heads.map((head, index) => cell(entries.by_age?.[state]?.[index] ?? 0, head)),
      ))),
    ), entries.complete ? "" : node("p", { class: "muted" }, `${whole(entries.counted)} were counted; there may be more.`)];
  });
}

const cell = (number, head) => node("td", { class: number || head === "all" ? "n" : "n zero", "data-head": head }, whole(number));

function showColumns() {
  show("columns", status.sources, () => {
    const sources = Object.entries(status.sources || {});
    if (!sources.length) return [node("p", { class: "muted" }, "No source has reported yet.")];
    const rows = sources.flatMap(([name, source]) => [[`${name}: total`, source.total], ...Object.entries(source.workers || {}).map(([worker, row]) => [`${name}: ${worker}`, row])]);
    const columns = Object.keys(sources[0][1].total);
    return [node("table", { class: "stacked" },
      node("thead", {}, node("tr", {}, node("th", { scope: "col" }, "column"), ...rows.map(([name]) => node("th", { scope: "col", class: "n" }, name)))),
      node("tbody", {}, ...columns.map((column) => node("tr", {}, node("th", { scope: "row" }, node("code", {}, column)), ...rows.map(([name, row]) => node("td", { class: "n", "data-head": name }, columnValue(column, row[column])))))),
    )];
  });
}

function columnValue(column, value) {
  if (value === null || value === undefined) return "not known";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return column.startsWith("bytes") ? bytes(value) : whole(value);
}

// --- what the daemon remembers --------------------------------------------------------------------

function showDecisions() {
  const list = recent.decisions.map(({ age_s: _, ...rest }) => rest);
  show("decisions", list, () => list.length ? [node("table", { class: "log" },
    node("thead", {}, node("tr", {}, ...["when (UTC)", "event", "what and why"].map((head) => node("th", { scope: "col" }, head)))),
    node("tbody", {}, ...list.map((each) => node("tr", { "data-severity": each.level },
      node("td", {}, `${shortly(each.at_ms)} `), node("td", { class: "event" }, each.event.replaceAll("_", " "), each.times > 1 ? ` × ${whole(each.times)}` : ""),
      node("td", {}, each.text)))),
  )] : [node("p", { class: "muted" }, "None yet since this daemon began.")]);
}

function showAudits() {
  const audits = recent?.audits ?? null, noted = status?.audits ?? [];
  show("audits", [audits, noted.map(({ age_s: _, ...rest }) => rest)], () => {
    const shown = [];
    noted.forEach((each, index) => shown.push(
      node("p", {}, node("b", {}, index ? "Before it: " : "The last one: "), each.sentence),
      node("p", { class: "muted" }, `ended ${each.ended ? moment(Date.parse(each.ended)) : "–"}, in ${each.where}`)));
    if (audits?.problem) shown.push(node("p", { class: "error" }, audits.problem));
    if (audits?.runs.length) shown.push(node("ul", { class: "items" }, ...audits.runs.map(auditRun)));
    if (!shown.length) shown.push(node("p", { class: "muted" }, audits ? "No run yet in daemon.audit_reports." : "None is known. Set daemon.audit_reports to list the runs of a directory here."));
    return shown;
  });
}

function auditRun(run) {
  const started = run.started_ns === null ? null : moment(run.started_ns / 1e6);
  const found = run.problem || [
    run.ended_ns === null ? "still runs, or was interrupted" : run.complete ? "complete" : "not complete", run.ended_ns === null ? null : plural(run.findings, "finding", "findings"),
    run.blobs ? plural(run.blobs, "blob", "blobs") : null, run.ended_ns === null ? null : `took ${long((run.ended_ns - run.started_ns) / 1e9)}`,
  ].filter(Boolean).join(" · ");
  return node("li", {},
    node("p", {}, node("b", {}, run.name), started ? ` began ${started} ` : " ", run.has_report ? node("a", { href: `audits/${encodeURIComponent(run.name)}` }, "report") : ""),
    node("p", { class: run.problem ? "error" : "muted" }, found));
}

// --- charts ---------------------------------------------------------------------------------------

const charts = {};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function showCharts() {
  const { age_s: ages, inflow, drain, backlog } = recent.history;
  const span = Number(document.querySelector("input[name=span]:checked").value), now = Date.now() / 1000;
  const first = ages.findIndex((age) => age <= span), from = first < 0 ? ages.length : first;
  const times = ages.slice(from).map((age) => now - age);
  const scale = [now - span, now];
  draw("rates", scale, [times, inflow.slice(from), drain.slice(from)], [
    { label: "comes in", stroke: colour("--in"), dash: [6, 4], value: (_, value) => value === null ? "–" : `${rate(value)}/s` },
    { label: "is dealt with", stroke: colour("--out"), value: (_, value) => value === null ? "–" : `${rate(value)}/s` },
  ], `Entries per second. Now ${rate(lastOf(inflow))} come in and ${rate(lastOf(drain))} are dealt with.`);
  draw("backlog", scale, [times, backlog.slice(from)], [
    { label: "waits", stroke: colour("--left"), fill: `${colour("--left")}22`, value: (_, value) => value === null ? "–" : whole(value) },
  ], `Backlog: ${whole(lastOf(backlog))} entries now, at most ${whole(Math.max(0, ...backlog.slice(from).filter((value) => value !== null)))} in this time.`);
}

const lastOf = (values) => values.length ? values[values.length - 1] : null;

function draw(id, scale, data, series, said) {
  const place = byId(id);
  place.setAttribute("aria-label", said);
  if (!data.slice(1).some((values) => values.some((value) => value !== null))) {
    charts[id]?.destroy();
    delete charts[id];
    place.replaceChildren(node("p", { class: "empty" }, "No figures from this time."));
    return;
  }
  const width = Math.max(160, place.clientWidth);
  if (charts[id]) {
    charts[id].scale = scale;
    charts[id].setData(data);
    readLast(charts[id]);
    return;
  }
  place.replaceChildren();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const short = (seconds) => iso(seconds * 1000).slice(11, 16);
  charts[id] = new uPlot({
    width, height: 190, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"), cursor: { drag: { x: false, y: false }, y: false },
    legend: { markers: { width: 2, stroke: (_, index) => series[index - 1]?.stroke, fill: () => "transparent", dash: (_, index) => series[index - 1]?.dash ? "dashed" : "solid" } },
    hooks: { setCursor: [(chart) => { if (chart.cursor.left < 0) readLast(chart); }] },
    scales: { x: { time: true, range: () => charts[id]?.scale ?? scale }, y: { range: (_, __, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: [{ ...axis, values: (_, splits) => splits.map(short), space: 60 }, { ...axis, size: 52, values: (_, splits) => splits.map((value) => value >= 10000 ? `${value / 1000}k` : value) }],
    series: [{ label: "at", value: (_, value) => value === null ? "–" : `${clock(value * 1000)} UTC` }, ...series.map((each) => ({ width: 2, points: { size: 4 }, ...each }))],
  }, data, place);
  charts[id].scale = scale;
  readLast(charts[id]);
}

function readLast(chart) {  // without a pointer on it, a chart's legend tells the last figures
  if (chart.data[0].length) chart.setLegend({ idx: chart.data[0].length - 1 });
}

function redraw() {
  for (const id of Object.keys(charts)) { charts[id].destroy(); delete charts[id]; }
  if (recent) showCharts();
}

// --- asking ---------------------------------------------------------------------------------------

async function ask(address) {
  const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.json();
}

async function askStatus() {
  try {
    const answer = await ask("status.json");
    if (typeof answer?.headline !== "string" || !answer.sample || !answer.daemon) throw new Error("status.json: it is no status");
    status = answer;
    answeredAt = Date.now();
    [lost, broken] = [false, ""];
  } catch (error) {
    [lost, broken] = [true, error.name === "TypeError" || error.name === "TimeoutError" ? "" : error.message];
  }
  try {
    showStatus();
  } catch (error) {  // figures that are shown in part would be taken for whole ones
    [lost, broken] = [true, `status.json cannot be shown: ${error.message}`];
    document.body.classList.add("lost", "old");
    showAnswer();
    showFreshness();
    throw error;
  }
}

function showStatus() {
  document.body.classList.toggle("bare", !status?.store);
  const old = Boolean(status?.store) && (lost || status.sample.error !== null || status.sample.stale);
  document.body.classList.toggle("old", old);
  document.body.classList.toggle("lost", lost);
  byId("as-of").hidden = !old;
  if (old) byId("as-of").textContent = `These figures are from ${moment(answeredAt - status.sample.age_s * 1000)}, and not of now.`;
  showAnswer();
  showFreshness();
  if (status && lost) { showTiles(); showDaemons(); }
  if (lost) return;
  byId("store").textContent = status.store ? `${status.store.kind} · ${status.store.name}` : "";
  byId("self").textContent = `Shown by ${status.daemon.instance}${status.daemon.stopping ? ", which is stopping" : ""}. Times are UTC. Nothing can be changed here.`;
  for (const part of [showTiles, showBars, showStuck, showFeed, showDaemons, showServices, showEntries, showColumns, showAudits]) part();
}

async function askRecent() {
  try { recent = await ask("recent.json"); } catch { return; }
  for (const part of [showDecisions, showAudits, showCharts]) part();
}

async function repeat(what, everyMs) {
  for (;;) {
    try { await what(); } catch (error) { console.error(error); }
    await new Promise((wake) => setTimeout(wake, everyMs));
  }
}

byId("spans").addEventListener("change", () => { if (recent) showCharts(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(() => {
  for (const [id, chart] of Object.entries(charts)) {
    const width = Math.max(160, byId(id).clientWidth);
    if (chart.width !== width) chart.setSize({ width, height: 190 });
  }
}).observe(byId("figures"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) { watch(); askStatus().catch(console.error); askRecent().catch(console.error); } });
setInterval(watch, 1000);
repeat(askStatus, STATUS_EVERY_MS);
repeat(askRecent, RECENT_EVERY_MS);
