/** Elements with attributes and children, without a framework. */

type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;

/** An HTML element; an attribute of `true` is written without a value, one of `false` or `undefined` is left out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

/** The same for SVG. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

export function setAttributes(element: Element, attributes: Attributes): void {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) element.removeAttribute(key);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
}

/** Call `draw` at the next frame, however often it is asked for until then. */
export function atNextFrame(draw: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

/** Call `draw` when the element's width is known, and when it changes. Returns what ends it. */
export function whenResized(element: Element, draw: () => void): () => void {
  let width = -1;
  const observer = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  observer.observe(element);
  return () => observer.disconnect();
}

let counter = 0;
/** An id that no other element has. */
export function freshId(prefix: string): string {
  counter += 1;
  return `${prefix}-${counter}`;
}
