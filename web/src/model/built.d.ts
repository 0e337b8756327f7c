/** A worker's program, bundled by build.mjs into one string. */
declare module "worker:*" {
  const source: string;
  export default source;
}

/** A WebAssembly program, assembled by build.mjs. */
declare module "*.wat" {
  const program: Uint8Array<ArrayBuffer>;
  export default program;
}
