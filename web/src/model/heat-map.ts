import { h } from "../ui/dom.ts";

/** Attention weights of one head as a square: a row for each query, a column for each key. */
export class HeatMap {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { role: "img" });
  private readonly line = h("div", { class: "query-line", "aria-hidden": "true" });
  private weights: Float32Array = new Float32Array();
  private tokens = 0;

  constructor(choose: (query: number) => void) {
    const frame = h("div", { class: "heat" }, this.canvas, this.line);
    this.element = h(
      "figure",
      { class: "heat-map" },
      frame,
      h("figcaption", {}, "Attention weights: each row is a query, each column a key before it. Click a row to choose it."),
    );
    const pointed = (event: PointerEvent): void => {
      if (event.type !== "pointerdown" && event.buttons !== 1) return;
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.tokens);
      if (this.tokens) choose(Math.min(this.tokens - 1, Math.max(0, row)));
    };
    this.canvas.addEventListener("pointerdown", pointed);
    this.canvas.addEventListener("pointermove", pointed);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(weights: Float32Array, tokens: number, query: number, label: string): void {
    if (weights !== this.weights) {
      this.weights = weights;
      this.tokens = tokens;
      this.draw();
    }
    this.canvas.setAttribute("aria-label", label);
    this.line.style.top = `${(100 * query) / Math.max(1, tokens)}%`;
    this.line.style.height = `${100 / Math.max(1, tokens)}%`;
  }

  private draw(): void {
    const { canvas, tokens, weights } = this;
    canvas.width = canvas.height = Math.max(1, tokens);
    const pen = canvas.getContext("2d");
    if (!pen || !tokens) return;
    const [red = 0, green = 0, blue = 0] = (getComputedStyle(canvas).color.match(/[\d.]+/g) ?? []).map(Number);
    const image = pen.createImageData(tokens, tokens);
    for (let i = 0; i < tokens * tokens; i++) {
      image.data[4 * i] = red;
      image.data[4 * i + 1] = green;
      image.data[4 * i + 2] = blue;
      image.data[4 * i + 3] = 255 * Math.sqrt(weights[i]!);
    }
    pen.putImageData(image, 0, 0);
  }
}
