/** One stretch of a multimodal row: text, an image, or a video, in tokens (patches after merging). */
export type Segment =
  | { readonly kind: "text"; readonly tokens: number }
  | { readonly kind: "image" | "video"; readonly frames: number; readonly height: number; readonly width: number };

export interface Placed {
  readonly kind: Segment["kind"];
  readonly position: readonly [time: number, height: number, width: number];
}

/**
 * Return M-RoPE's three coordinates of each token (Qwen2-VL; Wang et al. 2024, arXiv:2409.12191, section 2.1): text
 * advances all three; after a picture it continues from the larger of its height and width.
 */
export function mropePositions(segments: readonly Segment[]): Placed[] {
  const placed: Placed[] = [];
  let next = 0;
  for (const segment of segments) {
    if (segment.kind === "text") {
      for (let i = 0; i < segment.tokens; i += 1) placed.push({ kind: "text", position: [next + i, next + i, next + i] });
      next += segment.tokens;
      continue;
    }
    const { kind, frames, height, width } = segment;
    for (let t = 0; t < frames; t += 1) {
      for (let y = 0; y < height; y += 1) {
        for (let x = 0; x < width; x += 1) placed.push({ kind, position: [next + t, next + y, next + x] });
      }
    }
    next += Math.max(height, width);
  }
  return placed;
}
