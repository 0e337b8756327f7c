import { readJson, type ExplorerData } from "./data.ts";
import type { Picture } from "./picture.ts";
import { PICTURES } from "./pictures/index.ts";
import { browserAddress, FragmentState } from "./state.ts";
import { Controls } from "./ui/controls.ts";
import { h } from "./ui/dom.ts";

const data = readJson<ExplorerData>("ropewalk-data");
const main = document.querySelector("main");
const contents = document.querySelector("nav ol");
if (data === null || main === null || contents === null) throw new Error("the page holds no data");

const state = new FragmentState(browserAddress());
const context = { data, state };
const unmounted = new Map<Element, () => void>();
const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) mount(entry.target);
  },
  { rootMargin: "800px 0px" },
);

const shown = PICTURES.filter(({ id }) => data.only === undefined || id === data.only);
document.body.classList.toggle("embedded", data.only !== undefined);
for (const [index, picture] of shown.entries()) {
  contents.append(h("li", {}, h("a", { href: `#${picture.id}` }, picture.title)));
  const section = sectionOf(picture, index + 1);
  main.append(section);
  observer.observe(section);
}
const [first] = main.children;
if (first !== undefined && state.picture === "") mount(first); // usable now: the observer waits for a frame
showTarget();
addEventListener("hashchange", showTarget);

/** Return a picture's section: heading, what to try, and a body that stays empty until it is near the screen. */
function sectionOf(picture: Picture, number: number): HTMLElement {
  const body = h("div", { class: "body" });
  const link = h("a", { class: "permalink", href: `#${picture.id}` }, "Link to this view");
  const reset = h("button", { type: "button", class: "plain" }, "Reset");
  const heading = h("h2", { id: `${picture.id}-title` }, h("span", { class: "number" }, String(number)), picture.title);
  const section = h(
    "section",
    { id: picture.id, "aria-labelledby": `${picture.id}-title`, tabindex: -1 },
    heading,
    h("p", { class: "try" }, picture.tryThis),
    body,
    h("p", { class: "links" }, link, reset),
  );
  reset.addEventListener("click", () => state.clear(picture.id));
  state.subscribe(picture.id, () => link.setAttribute("href", state.link(picture.id)));
  link.setAttribute("href", state.link(picture.id));
  unmounted.set(section, () => picture.mount(body, { ...context, controls: new Controls(picture.id, state) }));
  return section;
}

function mount(section: Element): void {
  const start = unmounted.get(section);
  unmounted.delete(section);
  observer.unobserve(section);
  start?.();
}

/** Scroll to the picture in the address, with those above it, which would move it if they came later. */
function showTarget(): void {
  const target = document.getElementById(state.picture);
  if (target === null) return;
  for (const section of main?.children ?? []) {
    mount(section);
    if (section === target) break;
  }
  target.scrollIntoView();
  requestAnimationFrame(() => requestAnimationFrame(() => target.scrollIntoView())); // charts get their sizes late
  target.focus({ preventScroll: true }); // the next Tab reaches its first control
  for (const item of contents?.querySelectorAll("a") ?? []) {
    item.toggleAttribute("aria-current", item.getAttribute("href") === `#${state.picture}`);
  }
}
