/** The built-in model's byte-level BPE: single digits, then GPT-2's pattern, then merges by rank. */
import type { TokenizerData } from "./weights.ts";

// Unicode's White_Space, as in Python's tokenizer; JavaScript's \s lacks U+0085 and contains U+FEFF.
const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const DIGIT = /\p{N}|[^\p{N}]+/gu;
const WORD = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`,
  "gu",
);

export class Tokenizer {
  readonly size: number;
  private readonly bytes: Uint8Array[];
  private readonly idOfByte = new Int32Array(256);
  /** By `left * size + right`: rank and id of the merged token. */
  private readonly merges = new Map<number, { rank: number; id: number }>();
  private readonly words = new Map<string, number[]>();
  private readonly special: Map<string, number>;
  private readonly specialPattern: RegExp | null;

  constructor(data: TokenizerData) {
    const characters = byteCharacters();
    const byteOf = new Map(characters.map((character, byte) => [character, byte]));
    const idOf = new Map(data.tokens.map((token, id) => [token, id]));
    this.size = data.tokens.length;
    this.bytes = data.tokens.map((token) => Uint8Array.from([...token].map((character) => byteOf.get(character)!)));
    characters.forEach((character, byte) => (this.idOfByte[byte] = idOf.get(character)!));
    for (let i = 0; i < data.merges.length; i += 2) {
      const left = data.merges[i]!;
      const right = data.merges[i + 1]!;
      const id = idOf.get(data.tokens[left]! + data.tokens[right]!)!;
      this.merges.set(left * this.size + right, { rank: i / 2, id });
    }
    this.special = new Map(Object.entries(data.special));
    const spellings = [...this.special.keys()].map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.specialPattern = spellings.length ? new RegExp(`(${spellings.join("|")})`) : null;
  }

  /** Return the ids of a text, as Python's `encode`. */
  encode(text: string): number[] {
    const ids: number[] = [];
    for (const part of this.specialPattern ? text.split(this.specialPattern) : [text]) {
      const special = this.special.get(part);
      if (special !== undefined) ids.push(special);
      else
        for (const piece of part.match(DIGIT) ?? [])
          for (const word of piece.match(WORD) ?? []) ids.push(...this.encodeWord(word));
    }
    return ids;
  }

  /** Return the text of ids; incomplete characters become U+FFFD. */
  decode(ids: ArrayLike<number>): string {
    const parts = Array.from(ids, (id) => this.bytes[id]!);
    const whole = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(whole);
  }

  private encodeWord(word: string): number[] {
    const known = this.words.get(word);
    if (known) return known;
    const ids = Array.from(new TextEncoder().encode(word), (byte) => this.idOfByte[byte]!);
    for (;;) {
      let best: { rank: number; id: number } | null = null;
      let at = 0;
      for (let i = 0; i + 1 < ids.length; i++) {
        const merge = this.merges.get(ids[i]! * this.size + ids[i + 1]!);
        if (merge && (best === null || merge.rank < best.rank)) [best, at] = [merge, i];
      }
      if (best === null) break;
      ids.splice(at, 2, best.id);
    }
    if (this.words.size < 20_000) this.words.set(word, ids);
    return ids;
  }
}

/** Return GPT-2's character for each byte: printable bytes are themselves, others U+0100 and following. */
function byteCharacters(): string[] {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCharCode(printable ? byte : next++);
  });
}
