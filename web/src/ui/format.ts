/** Numbers as text. */

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Whole tokens: 32,768. */
export function tokens(value: number): string {
  return grouped.format(Math.round(value));
}

/** Tokens on an axis: 32K, 1M, 512. */
export function shortTokens(value: number): string {
  for (const [unit, name] of [[1_048_576, "M"], [1024, "K"]] as const) {
    if (value >= unit && Number.isInteger(value / unit)) return `${value / unit}${name}`;
  }
  if (value >= 1e6) return `${significant(value / 1e6, 3)}M`;
  if (value >= 1e4) return `${significant(value / 1e3, 3)}k`;
  return grouped.format(value);
}

/** Significant digits without trailing zeros; e-notation only if it is shorter. */
export function significant(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e7 || size < 1e-4
      ? value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e")
      : size >= 10 ** digits
        ? grouped.format(value)
        : String(Number(value.toPrecision(digits)));
  return text.replace(/-/g, "−");
}

/** With its sign. */
export function signed(value: number, digits = 3): string {
  return value > 0 ? `+${significant(value, digits)}` : significant(value, digits);
}

/** An angle in degrees, 0 to 360. */
export function degrees(radians: number): string {
  return `${Math.round((((radians * 180) / Math.PI) % 360 + 360) % 360)}°`;
}
