/**
 * Call `moved` with the pointer's place inside `element`, in CSS pixels, while it is dragged.
 *
 * Touch still scrolls the page vertically; the element's style needs `touch-action: pan-y` or `none`.
 */
export function dragged(element: HTMLElement | SVGElement, moved: (x: number, y: number, event: PointerEvent) => void): void {
  const report = (event: PointerEvent) => {
    const box = element.getBoundingClientRect();
    moved(event.clientX - box.left, event.clientY - box.top, event);
  };
  element.addEventListener("pointerdown", (event: Event) => {
    const pointer = event as PointerEvent;
    if (pointer.button !== 0) return;
    element.setPointerCapture(pointer.pointerId);
    report(pointer);
  });
  element.addEventListener("pointermove", (event: Event) => {
    const pointer = event as PointerEvent;
    if (element.hasPointerCapture(pointer.pointerId)) report(pointer);
  });
}
