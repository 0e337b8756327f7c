import type { StateStore } from "../state.ts";
import { Controls, type Control } from "../ui/controls.ts";
import { h } from "../ui/dom.ts";
import { tokens as grouped } from "../ui/format.ts";
import type { Loaded, Side } from "./engine.ts";
import { ANGLES, type Angles, type Setting } from "./setting.ts";

const OWN = "own";
const SHIFTS = [0, 1, 10, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000];
const FIRST_SAMPLE = 1; // the repeated list, which shows most
const FAR_SAMPLE = 2; // the list again, past the trained length
const STRETCHED = ["yarn", "rerope", "crop"]; // three kinds of methods that have a button of their own
const COPYING = { layer: 2, head: 2 }; // the head that attends to what followed last time

/** The picture's state: the text, the changes, and the view. */
export class LiveControls {
  private readonly controls: Controls;
  private readonly sample: Control<string>;
  private readonly rotation: Control<boolean>;
  private readonly shift: Control<number>;
  private readonly method: Control<string>;
  private readonly target: Control<string>;
  private readonly angles: Control<string>;
  private readonly half: Control<boolean>;
  private readonly sideChoice: Control<string>;
  private readonly layerChoice: Control<number>;
  private readonly headChoice: Control<number>;
  private readonly colourChoice: Control<string>;
  private readonly length: Control<number>;
  private readonly heat: Control<string>;
  private readonly generateButton: HTMLButtonElement;
  private readonly methodNote = h("p", { class: "hint" });
  /** Buttons that change several things at once. */
  readonly tries = h("p", { class: "row" }, "Try:");
  /** The controls of the view, below the others. */
  readonly inside = h("div", { class: "controls" });
  private draws = 0;
  /** Initial content of the reader's own text. */
  private begun: string;

  constructor(
    private readonly id: string,
    private readonly state: StateStore,
    private readonly model: Loaded,
  ) {
    const controls = (this.controls = new Controls(id, state));
    const plain = model.methods[0]!.name;
    this.begun = model.samples[FIRST_SAMPLE]!.text;
    this.sample = controls.select({
      key: "sample", label: "Text", value: String(FIRST_SAMPLE),
      choices: [...model.samples.map(({ name }, i) => ({ value: String(i), label: name })), { value: OWN, label: "Your own" }],
    }); // prettier-ignore
    this.heading("Change the positions");
    this.rotation = controls.toggle({ key: "rotation", label: "Rotation", value: true });
    this.shift = controls.slider({
      key: "shift", label: "Add to every position", min: 0, max: SHIFTS.length - 1, value: 0,
      format: (i) => grouped(SHIFTS[i] ?? 0),
    }); // prettier-ignore
    this.angles = controls.select({
      key: "angles", label: "Angles computed in", value: "exact",
      choices: Object.entries(ANGLES).map(([value, label]) => ({ value, label })),
    }); // prettier-ignore
    this.half = controls.toggle({ key: "half", label: "Activations in bfloat16", value: false });
    this.method = controls.select({
      key: "method", label: "Extension method", value: plain,
      choices: model.methods.map(({ name, forgets }) => ({
        value: name,
        label: name === plain ? "none" : name + (forgets ? " (forgets)" : ""),
      })),
    }); // prettier-ignore
    this.target = controls.select({
      key: "target", label: "Extended to", value: String(model.targets[0]),
      choices: model.targets.map((target) => ({ value: String(target), label: `${grouped(target)} tokens` })),
    }); // prettier-ignore
    controls.element.append(this.methodNote);
    this.heading("Continue the text");
    this.length = controls.slider({ key: "count", label: "Tokens", min: 1, max: 100, value: 24 });
    this.heat = controls.select({
      key: "temperature", label: "Choose each token", value: "0",
      choices: [{ value: "0", label: "greedily: the most likely" }, { value: "0.8", label: "by sampling, temperature 0.8" }, { value: "1", label: "by sampling, temperature 1" }],
    }); // prettier-ignore
    this.generateButton = controls.button("Generate", () => {});
    const { layers, heads } = model.config;
    this.layerChoice = controls.slider({ key: "layer", label: "Layer", min: 1, max: layers, value: COPYING.layer });
    this.headChoice = controls.slider({ key: "head", label: "Head", min: 1, max: heads, value: COPYING.head });
    this.sideChoice = controls.select({
      key: "side", label: "Attention of the model", value: "changed",
      choices: [{ value: "trained", label: "as trained" }, { value: "changed", label: "as changed" }],
    }); // prettier-ignore
    this.colourChoice = controls.select({
      key: "colour", label: "Colour tokens by", value: "attention",
      choices: [
        { value: "attention", label: "attention from the chosen token" },
        { value: "loss", label: "their loss" },
        { value: "change", label: "change of their loss" },
      ],
    }); // prettier-ignore
    const looks = [this.layerChoice, this.headChoice, this.sideChoice, this.colourChoice];
    this.inside.append(...looks.map((control) => control.element));
    this.tryButton("As trained", {});
    this.tryButton("No rotation", { rotation: "0" });
    this.tryButton("Shift by a million", { shift: String(SHIFTS.length - 1) });
    this.tryButton("Positions in bfloat16", { shift: String(SHIFTS.indexOf(10_000)), angles: "positions" });
    this.tryButton("Past the trained length", { sample: String(FAR_SAMPLE) });
    for (const { name } of model.methods.filter(({ name }) => STRETCHED.includes(name)))
      this.tryButton(`… extended by ${name}`, { sample: String(FAR_SAMPLE), method: name });
  }

  get element(): HTMLElement {
    return this.controls.element;
  }

  get text(): string {
    const sample = this.model.samples[Number(this.sample.value)];
    if (sample) this.begun = sample.text;
    return sample ? sample.text : (this.state.get(this.id, "text") ?? this.begun);
  }

  get setting(): Setting {
    return {
      rotate: this.rotation.value,
      shift: SHIFTS[this.shift.value] ?? 0,
      method: this.method.value,
      target: Number(this.target.value),
      angles: this.angles.value as Angles,
      half: this.half.value,
    };
  }

  get side(): Side {
    return this.sideChoice.value as Side;
  }

  get layer(): number {
    return this.layerChoice.value;
  }

  get head(): number {
    return this.headChoice.value;
  }

  get colour(): string {
    return this.colourChoice.value;
  }

  get count(): number {
    return this.length.value;
  }

  get temperature(): number {
    return Number(this.heat.value);
  }

  /** Return the chosen token of `count`, counted from the end, so that it moves with a growing text. */
  query(count: number): number {
    const back = Number(this.state.get(this.id, "back") ?? 0) || 0;
    return Math.max(0, count - 1 - Math.max(0, back));
  }

  chooseQuery(query: number, count: number): void {
    const back = count - 1 - query;
    this.controls.setAll({ back: back > 0 ? String(back) : null });
  }

  setText(text: string): void {
    this.controls.setAll({ sample: OWN, text, back: null });
  }

  /** Call `generate` with a new seed at each click. */
  onGenerate(generate: (seed: number) => void): void {
    this.generateButton.addEventListener("click", () => generate(++this.draws));
  }

  draw(draw: () => void): () => void {
    return this.controls.draw(() => {
      const method = this.model.methods.find(({ name }) => name === this.method.value);
      this.methodNote.textContent = method?.changes ?? "";
      this.target.element.hidden = method === this.model.methods[0];
      draw();
    });
  }

  private tryButton(label: string, values: Record<string, string>): void {
    const button = h("button", { type: "button", class: "plain" }, label);
    const usual = { sample: null, text: null, back: null, rotation: null, shift: null, angles: null, half: null, method: null, target: null };
    button.addEventListener("click", () => this.controls.setAll({ ...usual, ...values }));
    this.tries.append(button);
  }

  private heading(text: string): void {
    this.controls.element.append(h("h3", {}, text));
  }
}
