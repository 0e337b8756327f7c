/**
 * The state of every picture, kept in the address's fragment: `#clocks&clocks.position=37`.
 *
 * The first word is the picture that the link leads to. Default values are not in the address.
 */
export interface StateStore {
  /** Return a picture's value, or null if the address does not contain it. */
  get(picture: string, key: string): string | null;
  /** Set values of one picture and call its listeners; null removes a value. */
  set(picture: string, values: Readonly<Record<string, string | null>>): void;
  /** Remove every value of one picture. */
  clear(picture: string): void;
  /** Call `listener` after each change of this picture's values; return a function that unsubscribes. */
  subscribe(picture: string, listener: () => void): () => void;
  /** Return the fragment (with `#`) that leads to a picture in its present state. */
  link(picture: string): string;
}

/** The storage of the fragment: the browser's address, or a variable in tests. */
export interface Address {
  read(): string;
  write(fragment: string): void;
  onChange(listener: () => void): void;
}

export class FragmentState implements StateStore {
  private values = new Map<string, string>();
  private target = "";
  private readonly listeners = new Map<string, Set<() => void>>();

  constructor(private readonly address: Address) {
    this.read();
    address.onChange(() => this.changedOutside());
  }

  /** Return the picture that the address leads to; empty for the top of the page. */
  get picture(): string {
    return this.target;
  }

  get(picture: string, key: string): string | null {
    return this.values.get(`${picture}.${key}`) ?? null;
  }

  set(picture: string, values: Readonly<Record<string, string | null>>): void {
    let changed = false;
    for (const [key, value] of Object.entries(values)) {
      if (this.get(picture, key) === value) continue;
      changed = true;
      if (value === null) this.values.delete(`${picture}.${key}`);
      else this.values.set(`${picture}.${key}`, value);
    }
    if (!changed) return;
    this.target = picture;
    this.address.write(this.fragment(picture, () => true));
    this.tell(picture);
  }

  clear(picture: string): void {
    const keys = [...this.values.keys()].filter((key) => key.startsWith(`${picture}.`));
    this.set(picture, Object.fromEntries(keys.map((key) => [key.slice(picture.length + 1), null])));
  }

  subscribe(picture: string, listener: () => void): () => void {
    const there = this.listeners.get(picture) ?? new Set();
    this.listeners.set(picture, there.add(listener));
    return () => there.delete(listener);
  }

  link(picture: string): string {
    return this.fragment(picture, (key) => key.startsWith(`${picture}.`));
  }

  private fragment(picture: string, kept: (key: string) => boolean): string {
    const pairs = [...this.values].filter(([key]) => kept(key)).sort(([a], [b]) => (a < b ? -1 : 1));
    return `#${[picture, ...pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`)].join("&")}`;
  }

  private read(): void {
    const [target = "", ...pairs] = this.address.read().replace(/^#/, "").split("&");
    this.target = target;
    this.values = new Map(pairs.map((pair) => [pair.split("=", 1)[0] ?? "", decoded(pair.slice(pair.indexOf("=") + 1))]));
  }

  private changedOutside(): void {
    this.read();
    for (const picture of this.listeners.keys()) this.tell(picture);
  }

  private tell(picture: string): void {
    for (const listener of this.listeners.get(picture) ?? []) listener();
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return the browser's own address. It replaces the present entry, so that dragging does not fill the history. */
export function browserAddress(): Address {
  let waiting: ReturnType<typeof setTimeout> | undefined;
  let latest = "";
  return {
    read: () => location.hash,
    write(fragment) {
      latest = fragment;
      // browsers limit how often the address may change
      waiting ??= setTimeout(() => {
        waiting = undefined;
        history.replaceState(null, "", latest);
      }, 150);
    },
    onChange: (listener) => addEventListener("hashchange", listener),
  };
}
