// Builds what the server embeds: the console, and Swagger UI from its package, each file compressed.
// The same sources and packages give the same files: names have hashes of contents and no file has a
// time. A file whose content is there already is left alone, because compressors differ.
//
// With --check it writes nothing, and fails if something would have changed.
import { build } from 'esbuild';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { constants, gunzipSync, gzipSync } from 'node:zlib';

process.chdir(dirname(fileURLToPath(import.meta.url)));
const check = process.argv.includes('--check');
const packages = 'node_modules';

const bundle = (entry, more = {}) =>
  build({
    entryPoints: [entry],
    bundle: true,
    splitting: true,
    format: 'esm',
    target: 'es2022',
    minify: true,
    legalComments: 'none',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    outdir: 'out',
    entryNames: '[name]-[hash]',
    chunkNames: '[name]-[hash]',
    assetNames: '[name]-[hash]',
    metafile: true,
    write: false,
    logLevel: 'warning',
    ...more,
  });

const base = (path) => path.slice(path.lastIndexOf('/') + 1);
const named = (file, content) => {
  const hash = createHash('sha256').update(content).digest('hex').slice(0, 10);
  const dot = file.lastIndexOf('.');
  return `${file.slice(0, dot)}-${hash}${file.slice(dot)}`;
};
// page puts the names of assets in the place of those of their sources.
const page = (file, names) => {
  let html = readFileSync(file, 'utf8');
  for (const [from, to] of Object.entries(names)) html = html.replaceAll(`{{${from}}}`, to);
  if (html.includes('{{')) throw new Error(`${file}: a name is left: ${html.match(/{{.*?}}/)[0]}`);
  return Buffer.from(html);
};

const files = new Map();
const put = (path, content) => files.set(path, Buffer.from(content));

const app = await bundle('src/main.tsx');
const names = {};
for (const f of app.outputFiles) {
  put(`console/assets/${base(f.path)}`, f.contents);
  const entry = base(f.path).match(/^(main)-.*(\.js|\.css)$/);
  if (entry) names[entry[1] + entry[2]] = base(f.path);
}
put('console/index.html', page('src/index.html', names));

const swagger = {};
for (const f of ['swagger-ui-bundle.js', 'swagger-ui.css']) {
  // Maps of the sources are not served.
  const content = readFileSync(join(packages, 'swagger-ui-dist', f), 'utf8').replace(/\n?(\/\/|\/\*)# sourceMappingURL=.*$/s, '');
  swagger[f] = named(f, content);
  put(`swagger-ui/assets/${swagger[f]}`, content);
}
const start = await bundle('src/swagger.ts', { splitting: false });
for (const f of start.outputFiles) {
  put(`swagger-ui/assets/${base(f.path)}`, f.contents);
  swagger[base(f.path).replace(/-[A-Z0-9]+\./, '.')] = base(f.path);
}
put('swagger-ui/index.html', page('src/swagger.html', swagger));

// What of the packages is in the bundles is said with its licence.
const used = new Set(['swagger-ui-dist']);
for (const input of Object.keys({ ...app.metafile.inputs, ...start.metafile.inputs })) {
  const m = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/);
  if (m) used.add(m[1]);
}
let licences = 'The console and Swagger UI contain these packages.\n';
for (const name of [...used].sort()) {
  const dir = join(packages, name);
  const { version, license } = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
  licences += `\n${'='.repeat(80)}\n${name} ${version} (${license})\n`;
  for (const f of readdirSync(dir).sort()) {
    if (!/^(licen[cs]e|notice)/i.test(f) && !/bundle\.js\.LICENSE\.txt$/.test(f)) continue;
    if (/^swagger-ui-es/.test(f)) continue;
    licences += `\n${readFileSync(join(dir, f), 'utf8').replaceAll('\r', '').replace(/[ \t]+$/gm, '').trim()}\n`;
  }
}
put('LICENSES.txt', licences);

const dist = join('..', 'dist');
const stale = [];
const seen = new Set();
for (const [path, content] of files) {
  const to = join(dist, path + '.gz');
  seen.add(to);
  if (existsSync(to) && gunzipSync(readFileSync(to)).equals(content)) continue;
  stale.push(to);
  if (check) continue;
  mkdirSync(dirname(to), { recursive: true });
  const packed = gzipSync(content, { level: constants.Z_BEST_COMPRESSION });
  packed[9] = 255; // which system has compressed it is not said
  writeFileSync(to, packed);
}
for (const f of existsSync(dist) ? readdirSync(dist, { recursive: true, withFileTypes: true }) : []) {
  const path = join(f.parentPath ?? f.path, f.name);
  if (!f.isFile() || seen.has(path)) continue;
  stale.push(path);
  if (!check) rmSync(path);
}
if (check && stale.length > 0) {
  console.error(`not what the sources give: run make console\n  ${stale.join('\n  ')}`);
  process.exit(1);
}
// What the browser loads before it shows the first page: what main imports, without what it imports when it is needed.
const most = 150;
const first = new Set(['console/index.html', `console/assets/${names['main.css']}`]);
const load = (output) => {
  const path = `console/assets/${base(output)}`;
  if (first.has(path)) return;
  first.add(path);
  for (const i of app.metafile.outputs[output].imports) if (i.kind === 'import-statement') load(i.path);
};
load(Object.keys(app.metafile.outputs).find((o) => base(o) === names['main.js']));
const packed = (path) => gzipSync(files.get(path), { level: constants.Z_BEST_COMPRESSION }).length / 1000;
const begin = [...first].reduce((n, path) => n + packed(path), 0);
const later = [...files.keys()].filter((path) => path.startsWith('console/') && !first.has(path)).map((path) => `${base(path).replace(/-[A-Z0-9]+\./, '.')} ${packed(path).toFixed(1)}`);
console.log(`first page ${begin.toFixed(1)} kB compressed (at most ${most}); when needed: ${later.join(', ')}`);
if (begin > most) {
  console.error(`the first page has ${begin.toFixed(1)} kB, more than ${most}: load by import() what it does not need`);
  process.exit(1);
}
const size = (prefix) => [...seen].filter((p) => p.startsWith(join(dist, prefix))).reduce((n, p) => n + (existsSync(p) ? readFileSync(p).length : 0), 0);
console.log(`console ${(size('console') / 1000).toFixed(1)} kB, Swagger UI ${(size('swagger-ui') / 1000).toFixed(1)} kB compressed; ${stale.length} files ${check ? 'differ' : 'changed'}`);
