// The texts of "Copy as" with names and values that are hostile: a shell, Node and gofmt read them, and what arrives is what
// the request has. It needs no browser and no server.
//
//   node copyas.mjs
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { build, transform } from 'esbuild';

const bundled = await build({ entryPoints: [new URL('../src/copyas.ts', import.meta.url).pathname], bundle: true, write: false, format: 'esm', jsx: 'automatic', jsxImportSource: 'preact' });
const { languages, textOf, word, literal } = await import('data:text/javascript;base64,' + Buffer.from(bundled.outputFiles[0].text).toString('base64'));

const dir = mkdtempSync(join(tmpdir(), 'copyas-'));
// The programs write what they get.
for (const name of ['kubectl', 'curl']) {
  writeFileSync(join(dir, name), `#!/bin/sh
printf '%s\\0' "$@" >"$OUT"
for a; do case "$a" in @- | --filename=-) /bin/cat >"$OUT.in" ;; esac; done
`);
  chmodSync(join(dir, name), 0o755);
}
const shell = (text) => {
  const out = join(dir, 'out');
  execFileSync('/bin/sh', ['-eu', '-c', text], { env: { PATH: dir, OUT: out, TOKEN: 'the token', CA: 'ca.crt' }, cwd: dir });
  const input = existsSync(out + '.in') ? readFileSync(out + '.in', 'utf8') : '';
  rmSync(out + '.in', { force: true });
  return { args: readFileSync(out, 'utf8').split('\0').slice(0, -1), input };
};
let gofmt = true;
const go = (text) => {
  if (!gofmt) return;
  try {
    assert.equal(execFileSync('gofmt', [], { input: text, encoding: 'utf8' }), text, 'gofmt writes it in another way');
  } catch (error) {
    if (error.code !== 'ENOENT') throw error;
    gofmt = false;
  }
};
const typescript = async (text) => {
  const { code } = await transform(text, { loader: 'ts' });
  let asked;
  const fetch = (url, init) => ((asked = { url, ...init }), { ok: true, json: () => ({}) });
  const WebSocket = function (url, protocols) {
    asked = { url: url.replace(/^ws/, 'http'), method: 'GET', protocols };
  };
  await new (Object.getPrototypeOf(async () => {}).constructor)('fetch', 'WebSocket', 'token', code)(fetch, WebSocket, 'the token');
  return asked;
};

const hostile = [
  "it's", '"; rm -rf / #', '$(touch x)', '`touch x`', '${HOME}', '\\', '\\n', "'\\''", 'a\nb', 'EOF', '\nEOF\n', 'a b', '', '-n', '--output=/etc/passwd', '*', '~', '!x', '%41', '&x=1', '#', '?', '</script>', '{{7*7}}', '${token}',
  '\u2028', '\u202e', '\u0000', '\ud800', '😀', 'ü', '\t', '\r', '\u007f', '__proto__',
];
const arrives = (text) => text.replaceAll('\0', '').replace(/[\ud800-\udfff]/g, (c, i, all) => (/[\ud800-\udbff][\udc00-\udfff]/.test(all.slice(Math.max(0, i - 1), i + 2)) ? c : '\ufffd'));

const kind = { group: 'shop.example.com', version: 'v1', resource: 'pizzas', kind: 'Pizza', namespaced: true };
const path = '/apis/shop.example.com/v1/namespaces/default/pizzas';
const origin = 'https://127.0.0.1:8443';
const requests = (h) => [
  { method: 'GET', path, query: [['labelSelector', h]], of: { kind, namespace: h, verb: 'list' } },
  { method: 'GET', path: `${path}/${encodeURIComponent(arrives(h))}`, of: { kind, namespace: 'default', name: h, verb: 'get' } },
  { method: 'DELETE', path: `${path}/x`, query: [['propagationPolicy', 'Foreground']], of: { kind, namespace: 'default', name: h, verb: 'delete' } },
  { method: 'POST', path, query: [['fieldManager', h]], body: { kind: 'Pizza', spec: { note: h, [h]: 1 } }, of: { kind, namespace: 'default', verb: 'create' } },
  { method: 'PATCH', path: `${path}/x`, query: [['fieldManager', 'me'], ['force', 'true']], contentType: 'application/apply-patch+yaml', body: { spec: { note: h } }, of: { kind, namespace: 'default', name: 'x', verb: 'apply' } },
  { method: 'PATCH', path: `${path}/x`, contentType: 'application/merge-patch+json', body: { spec: { note: h } }, of: { kind, namespace: 'default', name: h, verb: 'patch' } },
  { method: 'PATCH', path: `${path}/x/status`, contentType: 'application/merge-patch+json', body: { note: h } },
  { method: 'POST', path: `${path}/x/bake`, body: { note: h } },
  { method: 'PUT', path: `${path}/x/scale`, body: `note: ${h}` },
  { method: 'GET', path: '/query/shop.example.com/v1/pizzas', query: [['q', h], ['sortBy', 'name'], ['q', 'again']] },
  { method: 'GET', path: `${path}/x/exec`, query: [['command', h]], words: ['annex', 'exec', 'pizzas.shop.example.com/x', '--', h], stream: true },
  { method: 'POST', path: '/history/shop.example.com/v1/namespaces/default/pizzas/x', query: [['fieldManager', h]], words: ['annex', 'undo', `--revision=${h}`], body: { undo: h } },
];

let count = 0;
for (const h of hostile) {
  const want = arrives(h);
  assert.deepEqual(shell(`kubectl ${word(h)}`).args, [want], `word ${JSON.stringify(h)}`);
  assert.equal(JSON.parse(literal(h)), want);
  for (const d of requests(h)) {
    const wantBody = d.body === undefined ? undefined : typeof d.body === 'string' ? arrives(d.body) : JSON.parse(arrives(JSON.stringify(d.body)).replaceAll('\\u0000', '\\u0000'));
    const seen = (text) => (typeof d.body === 'string' ? text.replace(/\n$/, '') : JSON.parse(text));
    for (const language of languages) {
      const text = textOf(d, language, origin);
      const context = `${language} of ${d.method} ${d.of?.verb ?? 'raw'} with ${JSON.stringify(h)}:\n${text}`;
      assert.ok(!text.includes('the token'), context);
      count++;
      try {
        if (language === 'kubectl' && !text.startsWith('# kubectl has no verb')) {
          const { args, input } = shell(text);
          const { of } = d;
          if (d.words) assert.deepEqual(args, d.words.map(arrives));
          if (of?.name !== undefined) assert.equal(args.filter((a) => a === arrives(of.name)).length > 0 || of.verb === 'apply', true);
          if (of?.namespace) assert.ok(args.includes(`--namespace=${arrives(of.namespace)}`) || of.namespace === '\0');
          if (of?.name?.startsWith('-') && of.verb !== 'apply') assert.ok(args.indexOf('--') >= 0 && args.indexOf('--') < args.indexOf(of.name));
          if (input && !d.words && typeof d.body !== 'string') assert.deepEqual(seen(input), wantBody);
          if (of?.verb === 'patch') assert.deepEqual(JSON.parse(args.find((a) => a.startsWith('--patch=')).slice(8)), wantBody);
        }
        if (language === 'curl' && d.stream) assert.match(text, /^# curl cannot/);
        else if (language === 'curl') {
          const { args, input } = shell(text);
          assert.equal(args[args.indexOf('--request') + 1], d.method);
          assert.ok(args.includes('Authorization: Bearer the token'));
          const url = new URL(args.at(-1));
          assert.equal(url.origin, origin);
          assert.deepEqual([...url.searchParams], (d.query ?? []).map(([n, v]) => [n, new URLSearchParams([[n, v]]).get(n).replaceAll('\ud800', '\ufffd')]));
          if (wantBody !== undefined && typeof d.body !== 'string') assert.deepEqual(seen(input), wantBody);
        }
        if (language === 'Go') go(text);
        if (language === 'TypeScript') {
          const asked = await typescript(text);
          assert.equal(asked.method, d.method);
          assert.equal(new URL(asked.url).origin, origin);
          if (wantBody !== undefined) assert.deepEqual(typeof d.body === 'string' ? asked.body : JSON.parse(asked.body), wantBody);
        }
      } catch (error) {
        error.message += `\n${context}`;
        throw error;
      }
    }
  }
}
rmSync(dir, { recursive: true, force: true });
console.log(`${count} texts of ${hostile.length} hostile names${gofmt ? '' : '; gofmt is not installed'}`);
