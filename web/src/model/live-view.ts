import type { StateStore } from "../state.ts";
import { Chart, type Point } from "../ui/chart.ts";
import { h } from "../ui/dom.ts";
import { significant, tokens as grouped } from "../ui/format.ts";
import { caption } from "../ui/layout.ts";
import type { ModelClient } from "./client.ts";
import type { AttentionResult, Loaded, ReadResult, Side, SideResult } from "./engine.ts";
import { HeatMap } from "./heat-map.ts";
import { LiveControls } from "./live-controls.ts";
import { NextTokens } from "./next-tokens.ts";
import { ANGLES, type Setting } from "./setting.ts";
import { TokenStrip, visible, type Tint } from "./token-strip.ts";

const SMOOTHED = 16; // tokens of the running mean
const LAST = 24; // last tokens with their own mean loss: the repeated part of the samples
const STRONGEST_LOSS = 10; // nats
const STRONGEST_CHANGE = 4;

/** The picture of the loaded model: it sends the requests of the controls and draws the answers. */
export class LiveView {
  readonly end: () => void;
  private readonly controls: LiveControls;
  private readonly text = h("textarea", { rows: 4, spellcheck: "false", "aria-label": "Text that the model reads" });
  private readonly sides: Record<Side, NextTokens>;
  private readonly strip: TokenStrip;
  private readonly heat: HeatMap;
  private readonly chart = new Chart(220);
  private readonly said = caption();
  private readonly seen = caption();
  private readonly parts: HTMLElement[];
  private asked = "";
  private askedAttention = "";
  private result: ReadResult | null = null;
  private attention: AttentionResult | null = null;

  constructor(
    id: string,
    root: HTMLElement,
    state: StateStore,
    private readonly client: ModelClient,
    private readonly model: Loaded,
  ) {
    this.controls = new LiveControls(id, state, model);
    const append = (text: string): void => this.controls.setText(this.controls.text + text);
    this.sides = { trained: new NextTokens("As trained", append), changed: new NextTokens("Changed", append) };
    const choose = (query: number): void => this.controls.chooseQuery(query, this.result?.tokens.length ?? 0);
    this.strip = new TokenStrip("Tokens of the text; arrow keys choose the query", choose);
    this.heat = new HeatMap(choose);
    this.text.addEventListener("input", () => this.controls.setText(this.text.value));
    this.controls.onGenerate((seed) => this.generate(seed));
    const sides = h("div", { class: "sides" }, this.sides.trained.element, this.sides.changed.element);
    const above = h("div", { class: "drawn" }, this.controls.tries, this.text, this.said, sides, this.chart.element);
    const heading = h("h3", {}, "Attention");
    const below = h("div", { class: "drawn" }, heading, this.strip.element, this.seen, this.heat.element);
    this.parts = [above, below];
    root.replaceChildren(above, this.controls.element, below, this.controls.inside);
    this.end = this.controls.draw(() => this.draw());
  }

  private draw(): void {
    const { text, setting } = this.controls;
    if (this.text.value !== text) this.text.value = text;
    const asked = JSON.stringify([text, setting]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.askedAttention = "";
      this.busy(true);
      this.client.ask({ kind: "read", text, changed: setting }, (result) => {
        if (result.tokens.join("") !== this.result?.tokens.join("")) for (const side of Object.values(this.sides)) side.forget();
        this.result = result;
        this.attention = null;
        this.busy(false);
        this.show();
      });
    } else this.show();
  }

  private show(): void {
    const { result } = this;
    if (result === null) return;
    const { side, layer, head, setting } = this.controls;
    const different = changesOf(setting, this.model);
    this.sides.changed.title(different.length ? `Changed: ${different.join(", ")}` : "Changed");
    this.sides.trained.show(result.trained.next, this.lossText(result.trained));
    if (different.length) this.sides.changed.show(result.changed.next, this.lossText(result.changed));
    else this.sides.changed.show([], "Change a setting, and the changed model’s predictions for the same text appear here.");
    this.said.textContent = this.summary(result, setting, different);
    this.showLosses(result, different.length > 0);
    const asked = JSON.stringify([side, layer, head]);
    if (asked === this.askedAttention) {
      this.showAttention();
      return;
    }
    this.askedAttention = asked;
    this.client.ask({ kind: "attention", side, layer: layer - 1, head: head - 1 }, (attention) => {
      this.attention = attention;
      this.showAttention();
    });
  }

  private summary(result: ReadResult, setting: Setting, different: readonly string[]): string {
    const { trainedLength } = this.model.config;
    const count = result.tokens.length;
    const long = count > trainedLength ? `, ${grouped(count - trainedLength)} more than the model was trained to` : "";
    const left = result.leftOut ? ` The text is longer: only its last ${grouped(count)} tokens are read.` : "";
    const change = `The largest change of a logit after the last token is ${significant(result.largestChange, 2)}.`;
    const only = setting.shift > 0 && setting.angles === "exact" && different.length === 1;
    const why = only ? " A score depends only on the distance between query and key, so a shift changes only the last digits." : "";
    return `${grouped(count)} tokens${long}, computed in ${(result.milliseconds / 1000).toFixed(2)} s.${left} ${different.length ? change + why : ""}`.trim();
  }

  private lossText({ losses, first }: SideResult): string {
    const { trainedLength } = this.model.config;
    const parts = [
      first ? `only the last ${losses.length - first} tokens are read` : `${nats(mean(losses))} per token`,
      losses.length > 2 * LAST ? `${nats(mean(losses.subarray(-LAST)))} in the last ${LAST}` : "",
      losses.length > trainedLength + LAST ? `${nats(mean(losses.subarray(trainedLength)))} beyond token ${trainedLength}` : "",
    ];
    return `Loss: ${parts.filter(Boolean).join("; ")}.`;
  }

  private showLosses(result: ReadResult, both: boolean): void {
    const { trainedLength } = this.model.config;
    const count = result.tokens.length;
    this.chart.element.hidden = count < 3 * SMOOTHED;
    if (this.chart.element.hidden) return;
    const trained = smoothed(result.trained.losses);
    const changed = smoothed(result.changed.losses);
    const highest = Math.max(...[...trained, ...changed].map(([, loss]) => (Number.isFinite(loss) ? loss : 0)));
    this.chart.update({
      summary: `Loss by token, running mean of ${SMOOTHED}.`,
      x: { label: "token", domain: [0, count], format: grouped },
      y: { label: `nats per token, running mean of ${SMOOTHED}`, domain: [0, Math.max(1, highest)] },
      series: [
        { label: "as trained", color: "var(--ink)", points: trained, dash: both ? "4 3" : "" },
        ...(both ? [{ label: "changed", color: "var(--warm)", points: changed }] : []),
      ],
      marks: count > trainedLength ? [{ x: trainedLength, label: "trained length" }] : [],
    });
  }

  private showAttention(): void {
    const { result, attention } = this;
    if (result === null || attention === null) return;
    const { layer, head, colour } = this.controls;
    const count = result.tokens.length;
    const query = this.controls.query(count);
    const { first, weights } = attention;
    const width = count - first;
    const row = (index: number): number => (query >= first && index >= first ? weights[(query - first) * width + index - first] ?? 0 : 0);
    const losses = result[attention.side].losses;
    const tints = result.tokens.map((_, index): Tint => {
      if (colour === "attention") return { strength: Math.sqrt(row(index)), color: "var(--accent)" };
      if (colour === "loss") return { strength: (losses[index] ?? 0) / STRONGEST_LOSS, color: "var(--warm)" };
      const change = (result.changed.losses[index] ?? 0) - (result.trained.losses[index] ?? 0);
      return { strength: Math.abs(change) / STRONGEST_CHANGE, color: change > 0 ? "var(--warm)" : "var(--good)" };
    });
    const titles = result.tokens.map(
      (token, index) => `${index}: ${visible(token)}; weight ${significant(row(index), 2)}; loss ${nats(losses[index] ?? NaN)}`,
    );
    this.strip.show(result.tokens, query, tints, titles);
    const best = result.tokens.map((_, index) => index).sort((a, b) => row(b) - row(a)).slice(0, 3);
    const name = (index: number): string => `“${visible(result.tokens[index] ?? "")}” (${index})`;
    const where = best.filter((index) => row(index) > 0.01).map((index) => `${name(index)} ${Math.round(100 * row(index))} %`);
    const text = count ? `Layer ${layer}, head ${head}: from ${name(query)} attention goes to ${where.join(", ")}.` : "";
    this.seen.textContent = text;
    this.heat.show(weights, width, Math.max(0, query - first), `${width} by ${width} attention weights. ${text}`);
  }

  private generate(seed: number): void {
    const { text, setting, count, temperature } = this.controls;
    for (const side of Object.values(this.sides)) side.forget();
    this.client.ask({ kind: "generate", text, changed: setting, count, temperature, seed }, (made) => {
      const speed = made.done && made.tokensPerSecond ? `${Math.round(made.tokensPerSecond)} tokens per second` : "";
      this.sides[made.side].continued(made.text, made.done, speed);
    });
  }

  private busy(on: boolean): void {
    for (const part of this.parts) part.classList.toggle("busy", on);
  }
}

/** Return the differences from the trained model, in words. */
export function changesOf(setting: Setting, model: Loaded): string[] {
  return [
    setting.rotate ? "" : "no rotation",
    setting.shift ? `positions + ${grouped(setting.shift)}` : "",
    setting.method === model.methods[0]?.name ? "" : `${setting.method} for ${grouped(setting.target)} tokens`,
    setting.angles === "exact" ? "" : setting.angles === "float32" ? "angles in float32" : ANGLES[setting.angles],
    setting.half ? "activations in bfloat16" : "",
  ].filter(Boolean);
}

function smoothed(losses: Float32Array): Point[] {
  return Array.from(losses.subarray(SMOOTHED), (_, i) => [i + SMOOTHED, mean(losses.subarray(i + 1, i + SMOOTHED + 1))]);
}

/** Return the mean of the finite numbers. */
function mean(values: Float32Array): number {
  const known = values.filter(Number.isFinite);
  return known.reduce((sum, x) => sum + x, 0) / known.length;
}

function nats(loss: number): string {
  return Number.isFinite(loss) ? `${loss.toFixed(2)} nats` : "–";
}
