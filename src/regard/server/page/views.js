// The views of the page, in the order of their tabs. A view is { name, open(panel, context) }; it is offered for the models that
// have the verb it is listed under, or those that its `serves(model, models)` accepts.
//
// `context`: model, models; `state`, the values that the address holds (strings); `remember(changes, { push })`, which writes
// them; `navigate(model, view, state)`; `examples`, inputs that suit the model; `closed`, an AbortSignal.
import { answer } from "./answer.js";
import { attention } from "./attention.js";
import { caption } from "./caption.js";
import { classify } from "./classify.js";
import { draw } from "./draw.js";
import { embed } from "./embed.js";
import { fill } from "./fill.js";
import { flow } from "./flow.js";
import { generate } from "./generate.js";
import { lens } from "./lens.js";
import { match } from "./match.js";
import { search } from "./search.js";
import { tag } from "./tag.js";
import { translate } from "./translate.js";
import { whatif } from "./whatif.js";

export const VIEWS = { translate, generate, fill, classify, tag, answer, caption, match, draw, attention, search, whatif, lens, flow, embed };

export const viewsOf = (model, models) => Object.keys(VIEWS).filter(key => VIEWS[key].serves?.(model, models) ?? model.verbs.includes(key));
