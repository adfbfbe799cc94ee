"use strict";
// Draws what it is told, live or recorded. Whatever a model or an endpoint wrote becomes text nodes, never markup.

const $ = id => document.getElementById(id);
const answers = new Map();
const page = { totals: null, standing: null, texts: false, shown: null, drawn: null, chosen: null, fresh: new Set(), waits: false };

// ---- small things ----------------------------------------------------------------------------------------------------

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}
function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const usd = nano => nano === null || nano === undefined ? "not known" : nano === 0 ? "0 USD" :
  `${(nano / 1e9).toFixed(9).replace(/(\.\d\d\d*?)0+$/, "$1")} USD`;
const nats = value => value === null ? "unbounded" : value === 0 ? "0" : value < 0.001 ? value.toExponential(1) : value.toPrecision(3);
const percent = share => share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const writer = token => token.source === "cloud" ? "cloud" : token.how === "accepted" ? "checked" : "local";
const visible = text => text.replace(/^ | $/g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "�");
const pair = (name, value) => make("div", "pair", make("span", "", name), make("span", "", value));
const fact = (name, value, alarm) => make("li", alarm ? "alarm" : "", name ? `${name} ` : "", make("b", "", value));
function bar(parts, whole, label) {
  const found = make("div", "bar");
  found.setAttribute("role", "img");
  found.setAttribute("aria-label", label);
  for (const [className, value] of parts) {
    const part = make("i", className);
    part.style.width = `${whole > 0 ? Math.min(100, 100 * value / whole) : 0}%`;
    found.append(part);
  }
  return found;
}

// ---- what is told ----------------------------------------------------------------------------------------------------

function hear(told) {
  if (told.snapshot) {
    answers.clear();
    Object.assign(page, { texts: told.texts, drawn: null });
  }
  for (const id of told.gone || []) answers.delete(id);
  for (const part of told.answers || []) {
    if (!answers.has(part.id)) answers.set(part.id, { head: null, tokens: [], requests: [], spans: [] });
    const answer = answers.get(part.id);
    if (part.head) answer.head = part.head;
    for (const name of ["tokens", "requests", "spans"]) {
      for (const [place, item] of part[name] || []) {
        answer[name][place] = item;
        if (name === "tokens" && part.id === page.drawn) page.fresh.add(place);
      }
    }
  }
  if (told.totals) page.totals = told.totals;
  if ("standing" in told) page.standing = told.standing;
  if (!page.waits) requestAnimationFrame(drawAll);
  page.waits = true;
}

function drawAll() {
  page.waits = false;
  const ids = [...answers.keys()];
  if ($("follow").checked || !answers.has(page.shown)) page.shown = ids.at(-1) ?? null;
  drawStanding();
  drawAnswer(answers.get(page.shown));
  if (page.totals) drawTotals(page.totals);
  drawList(ids.reverse());
}

// ---- the answer ------------------------------------------------------------------------------------------------------

function drawAnswer(answer) {
  if (!answer?.head) return;
  const { head, tokens } = answer, text = $("text");
  if (page.drawn !== page.shown) {
    text.replaceChildren();
    Object.assign(page, { drawn: page.shown, chosen: null, fresh: new Set(tokens.keys()) });
    for (const id of ["text", "legend"]) $(id).classList.toggle("blank", !page.texts);
    $("prompt").replaceChildren(...(page.texts ? (head.prompt || []).map(([role, said]) => make("div", "turn", make("b", "", role), said)) : [make("p", "hint", "Question and answer are hidden here: hybrid serve --monitor shows them.")]));
  }
  for (const place of [...page.fresh].sort((a, b) => a - b)) drawToken(text, tokens[place], place);
  page.fresh.clear();
  if (page.chosen === null && text.firstChild) text.firstChild.tabIndex = 0;
  const { counts, degraded } = head, ahead = head.ahead ? `, ${head.ahead} ahead` : "";
  const state = `${head.relayed ? "relayed, " : ""}${head.state}${ahead}${head.why ? `: ${head.why}` : ""}`;
  $("what").replaceChildren(head.model, make("span", "state", state));
  $("facts").replaceChildren(
    fact("", many(tokens.length, "token")), fact("cloud", percent(counts.cloud / Math.max(1, tokens.length))),
    fact("checks", head.checks), fact("requests", answer.requests.length), fact("hand-offs", head.handoffs.length),
    fact("bill", usd(head.answer ? head.answer.bill : head.spent)),
    fact("cloud alone", usd(head.answer ? head.answer.cloud_only : null)),
    ...(head.answer && head.answer.ttft_ms !== null ? [fact("first token", `${Math.round(head.answer.ttft_ms)} ms`)] : []),
    ...(head.policy ? [make("li", "", `policy ${head.policy}`)] : []));
  const alarm = degraded && make("li", "alarm", (degraded.kind === "paced" ? "" : `the local model ${head.away ? "goes" : "went"} on alone: `) + (degraded.why || degraded.kind || "the cloud did not answer"));
  $("notes").replaceChildren(...(alarm ? [alarm] : []), ...head.notes.map(note => make("li", "", note)));
  drawChart(answer);
  drawDetail(head, tokens[page.chosen], page.chosen);
  drawRequests(answer.requests);
}

function drawToken(text, token, place) {
  const kind = writer(token), old = text.children[place];
  const span = old || make("span");
  span.className = kind + (token.thought ? " thought" : "");
  if (token.text !== null) span.textContent = (token.thoughts || "") + token.text;
  if (old) return;
  span.setAttribute("role", "option");
  span.setAttribute("aria-selected", "false");
  if (token.text === null) span.setAttribute("aria-label", `${place + 1}: ${kind}`);
  span.tabIndex = -1;
  text.append(span);
}

function choose(place, focus) {
  const spans = $("text").children, before = spans[page.chosen ?? 0];
  if (!spans[place]) return;
  if (before) Object.assign(before, { tabIndex: -1, ariaSelected: "false" });
  page.chosen = place;
  spans[place].tabIndex = 0;
  spans[place].setAttribute("aria-selected", "true");
  if (focus) spans[place].focus({ preventScroll: false });
  const answer = answers.get(page.drawn);
  drawChart(answer);
  drawDetail(answer.head, answer.tokens[place], place);
}

const HOW = {
  accepted: "drafted here; a check let it stand", unchecked: "written here; nobody asked", bonus: "given by the cloud after a span that stands",
  recovered: "written by the cloud in the place of a draft that was turned down", written: "written by the cloud, which had the pen",
};
function wording(token) {
  if (!token.concept_kl) return null;
  const over = `KL over concepts ${nats(token.concept_kl[0])} to ${nats(token.concept_kl[1])} nats`;
  return token.source === "local" ? `kept as another wording: ${over}` : over;
}
function drawDetail(head, token, place) {
  if (!token) {
    $("detail").replaceChildren(make("p", "hint", "Point at a token, or move to one with Tab and the arrow keys, to read who wrote it and why."));
    return;
  }
  const limit = head.threshold === null ? "" : `, threshold ${head.threshold}`;
  const kl = token.kl === null ? `KL not known: ${token.source === "cloud" ? "not compared" : "nobody asked"}` :
    `KL ${nats(token.kl[0])} to ${nats(token.kl[1])} nats${limit}${token.kl[2] ? `; rows may be off by ${nats(token.kl[2])}` : ""}`;
  const said = [HOW[token.how] || token.how, token.model ? `by ${visible(token.model)}` : null, token.why, token.certified ? "certified: both models' favourite" : null, wording(token)];
  const name = token.text === null ? null : make("b", `mark ${writer(token)}`, `“${visible((token.thoughts || "") + token.text)}”`);
  const rows = token.candidates, sides = make("div", "sides");
  if (rows) for (const [side, title] of [["local", "local model"], ["cloud", "cloud"]]) sides.append(drawSide(title, rows[side]));
  $("detail").replaceChildren(
    make("h3", "", `Token ${place + 1}`, name ? " " : null, name), make("p", "", said.filter(Boolean).join("; ")), make("p", "", kl), ...(rows ? [sides] : []));
}
function drawSide(title, rows) {
  const list = make("ul", "", ...(rows || []).map(([text, prob, stands]) => {
    const fill = make("i");
    fill.style.width = `${100 * prob}%`;
    return make("li", stands ? "stands" : "", fill, make("span", "", make("code", "", visible(text) || "∅")), make("span", "", percent(prob)));
  }));
  return make("div", "", make("h3", "", title), rows ? list : make("p", "hint", "no row: not asked"));
}

// ---- the chart -------------------------------------------------------------------------------------------------------

const LOW = 1e-4, HIGH = 20;
function drawChart({ head, tokens, spans }) {
  const width = $("kl").clientWidth || 600, height = 144, left = 36, bottom = height - 8, top = 8;
  const step = Math.min(14, (width - left) / Math.max(1, tokens.length));
  const level = value => bottom - (bottom - top) * Math.log(Math.max(LOW, Math.min(HIGH, value)) / LOW) / Math.log(HIGH / LOW);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const known = tokens.filter(token => token.kl !== null);
  svg.setAttribute("aria-label", `KL is known at ${known.length} of ${tokens.length} tokens` +
    (head.threshold === null ? "" : `, above the threshold of ${head.threshold} at ${known.filter(token => token.kl[0] > head.threshold).length}`));
  svg.innerHTML = '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="unknown" y2="6"/></pattern></defs>';
  for (const tick of [0.001, 0.01, 0.1, 1, 10]) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width, y1: level(tick), y2: level(tick) }), draw("text", { x: 0, y: level(tick) + 4 }, tick));
  }
  const paths = { cloud: "", checked: "", local: "" };
  let unknownFrom = null;
  for (let place = 0; place <= tokens.length; place++) {
    const token = tokens[place], x = left + step * place;
    if (token && token.kl === null && unknownFrom === null) unknownFrom = x;
    if (unknownFrom !== null && (!token || token.kl !== null)) {
      svg.append(draw("rect", { class: "gap", x: unknownFrom, y: top, width: x - unknownFrom, height: bottom - top, fill: "url(#hatch)" }));
      unknownFrom = null;
    }
    if (!token || token.kl === null) continue;
    const from = level(token.kl[0]) + 1.5, to = Math.min(from - 3, token.kl[1] === null ? top : level(token.kl[1]));
    paths[writer(token)] += `M${x + step / 2} ${from}V${to}`;
  }
  for (const { at } of spans) svg.append(draw("line", { class: "draft", x1: left + step * at, x2: left + step * at, y1: bottom + 2, y2: height }));
  if (page.chosen !== null) svg.append(draw("rect", { class: "chosen", x: left + step * page.chosen, y: 0, width: Math.max(2, step), height }));
  for (const [kind, d] of Object.entries(paths)) if (d) svg.append(draw("path", { class: kind, d, "stroke-width": Math.max(1, Math.min(5, step * 0.6)) }));
  if (head.threshold !== null) {
    const y = level(head.threshold);
    svg.append(draw("line", { class: "threshold", x1: left, x2: width, y1: y, y2: y }), draw("text", { class: "above", x: width, y: y - 4, "text-anchor": "end" }, `threshold ${head.threshold}`));
  }
  svg.addEventListener("click", event => choose(Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / step), true));
  $("kl").replaceChildren(svg);
}

// ---- all answers -----------------------------------------------------------------------------------------------------

function drawStanding() {
  const now = page.standing;
  if (!now) return;
  if (now.loading) return $("standing").replaceChildren(fact("", "loading the model"));
  const closed = now.breaker === "closed", last = page.totals?.cloud, when = last?.at ? ` (question of ${new Date(1000 * last.at).toLocaleTimeString("en-GB")})` : "";
  const said = !last ? "not asked yet" : last.answers ? `answered last${when}` : `no answer${when}: ${last.why || "not known why"}`;
  $("standing").replaceChildren(
    fact("cloud", closed ? said : `left alone, ${now.breaker}${now.breaker_left_s ? ` for ${Math.ceil(now.breaker_left_s)} s` : ""}; ${said}`, !closed || last?.answers === false),
    fact("contexts", `${now.busy} of ${now.contexts} busy`), fact("queue", now.queued),
    fact("drift", now.drifts === null ? "not watched" : now.drifts ? "the pair drifts apart: kept drafts are turned down" : "none", now.drifts === true));
}

function drawTotals(totals) {
  const money = [], largest = Math.max(totals.spent || 0, totals.cloud_only || 0);
  for (const cap of page.standing ? page.standing.caps : []) {
    const said = `${usd(cap.spent)} of ${usd(cap.cap)}${cap.reserved ? `, ${usd(cap.reserved)} reserved` : ""}`;
    money.push(pair(`cap, ${cap.level}`, said), bar([["spent", cap.spent], ["reserved", cap.reserved]], cap.cap, said));
  }
  money.push(pair("spent", usd(totals.spent)), bar([["spent", totals.spent || 0], ["reserved", totals.reserved || 0]], largest, `spent ${usd(totals.spent)}`));
  if (totals.reserved !== 0) money.push(pair("reserved", usd(totals.reserved)));
  money.push(pair("the cloud alone", usd(totals.cloud_only)), bar([["spent", totals.cloud_only || 0]], largest, `the cloud alone ${usd(totals.cloud_only)}`));
  $("money").replaceChildren(...money);
  const by = { cloud: 0, checked: 0, local: 0 };
  for (const [source, how, count] of totals.tokens) by[writer({ source, how })] += count;
  const all = by.cloud + by.checked + by.local, share = kind => `${by[kind].toLocaleString("en")}${all ? ` (${percent(by[kind] / all)})` : ""}`;
  $("tokens").replaceChildren(
    bar(["cloud", "checked", "local"].map(kind => [kind, by[kind]]), all, `cloud ${by.cloud}, checked ${by.checked}, local ${by.local}`),
    pair("by the cloud", share("cloud")), pair("checked", share("checked")), pair("local, nobody asked", share("local")),
    pair("checks", totals.checks), pair("requests", Object.values(totals.requests).reduce((sum, count) => sum + count, 0)),
    pair("sent again", totals.retries), pair("answers", `${totals.answers.finished || 0} of ${totals.answers.begun || 0}`));
  const { counts, bounds } = totals.kl.upper, most = Math.max(1, totals.kl.unknown, ...counts);
  const columns = make("div", "columns", ...[totals.kl.unknown, ...counts].map((count, number) => {
    const column = make("i", number ? "" : "unsure");
    column.style.height = `${100 * count / most}%`;
    column.title = number === 0 ? `not known: ${count}` : number <= bounds.length ? `at most ${bounds[number - 1]}: ${count}` : `above ${bounds.at(-1)}: ${count}`;
    return column;
  }));
  $("spread").replaceChildren(columns, make("div", "scale", ...["?", "", "0.003", "", "0.03", "", "0.3", "", "3", "10"].map(edge => make("span", "", edge))),
    make("p", "hint", "Upper ends, in nats; “?”: not known"));
  $("why").replaceChildren(...(totals.handoffs.length ? totals.handoffs.map(([why, count]) => pair(why.replaceAll("#", "…"), count)) : [make("p", "hint", "none")]));
}

function drawList(ids) {
  const list = $("list"), old = new Map([...list.children].map(button => [button.dataset.id, button]));
  ids.forEach((id, number) => {
    const button = old.get(id) || make("button"), { head, tokens } = answers.get(id), { cloud, local, accepted } = head.counts;
    old.delete(id);
    button.replaceChildren(pair(`${head.model}, ${head.state}${head.degraded ? ", degraded" : ""}`, many(tokens.length, "token")),
      bar([["cloud", cloud], ["checked", accepted], ["local", local - accepted]], tokens.length, `cloud ${cloud}, checked ${accepted}`));
    button.setAttribute("aria-pressed", id === page.shown);
    if (list.children[number] !== button) list.insertBefore(button, list.children[number] ?? null);
    if (button.dataset.id) return;
    button.dataset.id = id;
    button.addEventListener("click", () => { $("follow").checked = false; page.shown = id; drawAll(); });
  });
  for (const button of old.values()) button.remove();
}

function drawRequests(requests) {
  const cells = (name, values) => values.map(value => make(name, "", value)), failed = requests.filter(each => each.why).length;
  const rows = requests.flatMap(each => [make("tr", each.why ? "failed" : "", ...cells("td", [each.kind, each.at + 1, each.tokens, each.prompt ?? "–", each.cached ?? "–", each.completion ?? "–", each.ms === null ? each.state : `${Math.round(each.ms)} ms`,
    each.state === "sent" ? `≤ ${usd(each.reserved)}` : usd(each.cost)])), each.why && make("tr", "why", Object.assign(make("td", "", `failed: ${each.why}`), { colSpan: 8 }))]);
  $("requests").querySelector("summary").textContent = many(requests.length, "request") + (failed ? `, ${failed} failed` : "");
  $("requests").lastElementChild.replaceChildren(make("table", "", make("thead", "", make("tr", "", ...cells("th", ["kind", "at", "asked", "prompt", "cached", "written", "time", "cost"]))), make("tbody", "", ...rows)));
}

// ---- the reader ------------------------------------------------------------------------------------------------------

const place = event => { const span = event.target.closest("#text > span"); return span ? [...$("text").children].indexOf(span) : -1; };
$("text").addEventListener("pointerover", event => { if (place(event) >= 0) choose(place(event), false); });
$("text").addEventListener("focusin", event => { if (place(event) >= 0 && place(event) !== page.chosen) choose(place(event), false); });
$("text").addEventListener("click", event => { if (place(event) >= 0) choose(place(event), true); });
$("text").addEventListener("keydown", event => {
  const now = page.chosen ?? 0, last = $("text").children.length - 1;
  const to = { ArrowRight: now + 1, ArrowDown: now + 10, ArrowLeft: now - 1, ArrowUp: now - 10, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(Math.max(0, Math.min(last, to)), true);
});
$("follow").addEventListener("change", drawAll);
addEventListener("resize", () => requestAnimationFrame(drawAll));

if ($("recorded")) {
  hear(JSON.parse($("recorded").textContent));
} else {
  if (location.search) history.replaceState(null, "", location.pathname);
  const source = new EventSource("/monitor/events");
  source.onopen = () => { $("link").textContent = "live"; };
  source.onmessage = event => hear(JSON.parse(event.data));
  source.onerror = () => { $("link").textContent = "not connected"; };
}
