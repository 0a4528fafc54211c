// Search by head: what every head attends to over a set of sentences, and the sentences in which one attends most to a single token.
import { post } from "./api.js";
import { paintOnThemeChange, scaleLegend, shade } from "./colormap.js";
import { scaleEnd } from "./colours.js";
import { announce, element, formatProbability, visibleToken } from "./dom.js";
import { snapshotButtons } from "./download.js";
import { withoutEmpty } from "./form.js";
import { createView, offerCopies } from "./view.js";

export const search = { name: "Search heads", open };
const EXAMPLES = ["The dog waited in the hut, although it had burned down.", "The goat drank because it was thirsty.", "A cat and a dog sleep under the table."];
const NUMBER = 64, MAX_NUMBER = 200;
const headKey = ({ kind, layer, head }) => `${kind ?? ""}.${layer}.${head}`;
const shortName = ({ kind, layer, head }) => `${kind ? `${kind} ` : ""}${layer}.${head}`;

function open(panel, context) {
  const { model, examples, state } = context, hasData = examples.text.length > 0;
  const view = createView(panel, context, { action: "Search", busy: "Reading every sentence …", resultLabel: "the heads", explained: false });
  const { form, result } = view;
  const lines = form.text("Sentences, one a line", { name: "lines", rows: 3, example: hasData ? "" : EXAMPLES.join("\n"), placeholder: hasData ? "the validation set" : undefined,
    hint: hasData ? "Empty: sentences of the model's validation set." : "This model names no data of its own: paste sentences." });
  const word = form.line("attending word", { name: "word", option: true, value: "", hint: "empty: any word" });
  const number = hasData ? form.number("sentences", { name: "number", min: 1, max: MAX_NUMBER, value: NUMBER, hint: "of the validation set" }) : null;
  const readLines = () => { const given = lines.read().split("\n").map(line => line.trim()).filter(Boolean); return given.length ? given.slice(0, MAX_NUMBER) : undefined; };
  const chosen = () => withoutEmpty({ kind: state.kind, layer: Number(state.layer) || undefined, head: Number(state.head) || undefined, token: word.value.trim() });
  offerCopies(view, context, () => {
    const given = readLines(), options = { view: "search", ...chosen() };
    return { verb: "show", inputs: [], options: { ...options, ...(given ? { data: "sentences.txt" } : { number: number?.read() }), out: "heads.html" },
      python: { inputs: given ? [given] : [], options }, print: 'result.save("heads.html")' };
  });
  form.onSubmit(async signal => {
    const found = await post("search", withoutEmpty({ model: model.id, text: readLines(), number: number?.read(), word: word.value.trim() }), signal);
    result.replaceChildren();
    showFound(result, found, context);
    announce(`${found.heads.length} heads over ${found.texts.length} sentences.`);
  });
}

function showFound(result, found, context) {
  const { state, remember } = context, hits = element("section", { "aria-label": "sentences", "aria-live": "polite" });
  const read = found.texts.length - found.skipped;
  const select = head => {
    remember({ kind: head.kind ?? undefined, layer: String(head.layer), head: String(head.head) });
    table.mark(head);
    showHits(hits, found, head, context);
  };
  const first = found.heads.find(head => (head.kind ?? undefined) === (state.kind ?? found.heads[0].kind ?? undefined) && String(head.layer) === state.layer
    && String(head.head) === state.head) ?? found.heads.reduce((best, head) => (head.hits[0]?.weight ?? 0) > (best.hits[0]?.weight ?? 0) ? head : best);
  result.append(element("p", { class: "hint" }, `${found.heads.length} heads over ${read} sentence${read === 1 ? "" : "s"}${found.skipped
    ? `; ${found.skipped} too long or empty` : ""}: the mean weight on each relation. Select a head to see where it attends most to one token.`));
  const table = headTable(found, context, select);
  const box = element("div", { class: "found" }, table.node, hits);
  result.append(box);
  snapshotButtons(result, `${context.model.id}-search`, () => [box]);
  select(first);
}

// The heads as rows, the relations as columns; a column's heading sorts by it.
function headTable(found, { state, remember }, onSelect) {
  const weight = (head, name) => head.weights[name]?.[0] ?? -1, end = scaleEnd(Math.max(...found.heads.flatMap(head => Object.values(head.weights).map(([w]) => w))));
  const body = element("tbody"), headings = new Map(), buttons = new Map();
  const sort = name => {
    const order = found.relations.includes(name) ? found.heads.toSorted((a, b) => weight(b, name) - weight(a, name)) : found.heads;
    for (const [key, cell] of headings) cell.setAttribute("aria-sort", key === name ? "descending" : "none");
    body.replaceChildren(...order.map(head => rows.get(headKey(head))));
  };
  const rows = new Map(found.heads.map(head => {
    const button = element("button", { type: "button", "aria-pressed": "false", title: `${head.name}: ${head.role}`, onclick: () => onSelect(head) }, shortName(head));
    buttons.set(headKey(head), button);
    return [headKey(head), element("tr", {}, element("th", { scope: "row" }, button), ...found.relations.map(name => weightCell(head.weights[name], end)))];
  }));
  const heading = name => {
    const cell = element("th", { scope: "col", "aria-sort": "none" }, element("button", { type: "button", title: `sort by ${name}`,
      onclick: () => { const next = state.sort === name ? undefined : name; remember({ sort: next }); sort(next); } }, name));
    headings.set(name, cell);
    return cell;
  };
  const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "head"), ...found.relations.map(heading)));
  const box = element("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "heads by what they attend to" },
    element("table", { class: "head-table" }, element("caption", { class: "hidden" }, "the mean weight of each head on each relation"), head, body));
  sort(state.sort);
  return { node: element("div", {}, box, scaleLegend(end, "mean weight; pointing at a number shows chance")),
    mark(chosen) { for (const [key, button] of buttons) button.setAttribute("aria-pressed", String(key === headKey(chosen))); } };
}

function weightCell(value, end) {
  if (!value) return element("td", { class: "none" }, element("span", { class: "hidden" }, "does not apply"));
  const cell = element("td", { title: `chance ${formatProbability(value[1])}` }, formatProbability(value[0]));
  paintOnThemeChange(cell, () => shade(cell, value[0] / end));
  return cell;
}

// The sentences of a head, the heaviest pair first; a click opens the head in the view of all heads.
function showHits(box, found, head, { model, navigate }) {
  const open = hit => navigate(model.id, "attention", { text: found.texts[hit.sentence], kind: head.kind ?? undefined, layer: String(head.layer),
    head: String(head.head), token: String(hit.query + 1), panel: "Lines" }, { focus: true });
  box.replaceChildren(element("h2", {}, head.name), element("p", { class: "hint" }, `${head.role === "mixed" ? "No single relation." : `Mostly: ${head.role}.`} A click opens `
    + "the sentence with this head."), head.hits.length ? element("ol", { class: "hits" }, ...head.hits.map(hit => hitRow(found, head, hit, () => open(hit))))
    : element("p", { class: "muted" }, "No sentence has such a pair."));
}

function hitRow(found, head, hit, onclick) {
  const [queries, keys] = found.tokens[head.kind ?? ""][hit.sentence], cross = head.kind === "cross";
  const words = keys.flatMap((token, i) => {
    const joined = /^·./.test(token), classes = [i === hit.key ? "key" : "", !cross && i === hit.query ? "query" : ""].filter(Boolean).join(" ");
    const node = element("span", { class: classes || null }, visibleToken(joined ? token.slice(1) : token));
    if (i === hit.key) paintOnThemeChange(node, () => shade(node, hit.weight));
    return [i && !joined ? " " : "", node];
  });
  return element("li", {}, element("button", { type: "button", onclick }, element("b", {}, formatProbability(hit.weight)),
    element("span", { class: "pair" }, element("em", {}, visibleToken(queries[hit.query])), " → ", element("em", {}, visibleToken(keys[hit.key])),
      ` ${hit.relation}`), element("span", { class: "sentence" }, ...words)));
}
