// Builds explorer.html of src/ropewalk/figures, or with --test [FOLDER] the tests into build/test.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import wabt from "wabt";

const HERE = dirname(fileURLToPath(import.meta.url));
const FIGURES = join(HERE, "..", "src", "ropewalk", "figures");
const SETTINGS = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"];

/** Every file that the built page depends on, by its path below web/ with forward slashes, in order. */
function sources() {
  const found = readdirSync(join(HERE, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(HERE, join(entry.parentPath, entry.name)).split(sep).join("/"));
  return [...SETTINGS, ...found].sort();
}

/** SHA-256 over names and contents; tests/figures/test_explorer.py computes the same. */
function digest() {
  const hash = createHash("sha256");
  for (const name of sources()) hash.update(`${name}\0`).update(readFileSync(join(HERE, name))).update("\0");
  return hash.digest("hex");
}

/** `import source from "worker:./worker.ts"` gives another program, bundled into one string; a .wat is assembled. */
const parts = {
  name: "parts",
  setup(builder) {
    builder.onResolve({ filter: /^worker:/ }, ({ path, resolveDir }) => ({
      path: relative(HERE, join(resolveDir, path.slice("worker:".length))),
      namespace: "worker",
    }));
    builder.onLoad({ filter: /.*/, namespace: "worker" }, async ({ path }) => ({
      contents: await bundled(path),
      loader: "text",
    }));
    builder.onLoad({ filter: /\.wat$/ }, async ({ path }) => ({ contents: await assembled(path), loader: "binary" }));
  },
};

async function assembled(path) {
  const program = (await wabt()).parseWat(path, readFileSync(path, "utf8"), { simd: true });
  return program.toBinary({}).buffer;
}

async function bundled(entry, options = {}) {
  const { outputFiles } = await build({
    entryPoints: [join(HERE, entry)],
    plugins: [parts],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: "es2022",
    legalComments: "none",
    charset: "utf8",
    logLevel: "warning",
    ...options,
  });
  // "</script" in the text of a program would end the element that holds it
  return outputFiles[0].text.trim().replaceAll("</script", "<\\/script");
}

async function page() {
  const texts = {
    SOURCES: digest(),
    STYLE: await bundled("src/style.css"),
    SCRIPT: await bundled("src/main.ts"),
  };
  const template = readFileSync(join(HERE, "src", "page.html"), "utf8");
  const text = template.replaceAll(/@@(SOURCES|STYLE|SCRIPT)@@/g, (_, name) => texts[name]);
  writeFileSync(join(FIGURES, "explorer.html"), text);
  console.log(`explorer.html: ${Math.round(text.length / 1024)} KiB`);
}

async function tests(out) {
  rmSync(out, { recursive: true, force: true });
  await build({
    entryPoints: readdirSync(join(HERE, "test"), { recursive: true })
      .filter((name) => name.endsWith(".test.ts"))
      .map((name) => join(HERE, "test", name)),
    plugins: [parts],
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    outbase: join(HERE, "test"),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    sourcemap: "inline",
    logLevel: "warning",
  });
}

const [option, folder = join(HERE, "build", "test")] = process.argv.slice(2);
await (option === "--test" ? tests(folder) : page());
