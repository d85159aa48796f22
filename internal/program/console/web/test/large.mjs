// How long a table of 50,000 objects takes to be sorted, filtered and paged, in the query API and in a headless Chromium, on
// this machine: make console-large. It fails only if something is not shown at all.
//
//   node large.mjs PROGRAM [objects [data]]
//
// PROGRAM is the annex tool, whose "serve" it starts. data is a folder whose objects are kept for the next time.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import https from 'node:https';
import { loadavg, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { begin, chromium, launch } from './looks.mjs';

const program = resolve(process.argv[2]);
const objects = Number(process.argv[3] ?? 50_000);
const token = 'ada-0123456789abcdef';
const dir = mkdtempSync(join(tmpdir(), 'console-'));
const data = process.argv[4] ? resolve(process.argv[4]) : join(dir, 'data');
writeFileSync(join(dir, 'tokens.csv'), `${token},ada,1,"system:masters"\n`, { mode: 0o600 });
const server = await begin(program, ['serve', '--data-dir', data, '--secure-port', '0', '--profiling', '--token-auth-file', join(dir, 'tokens.csv')], { cwd: dir, env: { ...process.env, TMPDIR: dir } });
const { base } = server;
const agent = new https.Agent({ keepAlive: true, maxSockets: 48, rejectUnauthorized: false }); // the server's authority is its own
const call = (method, path, body, type = 'application/json') =>
  new Promise((done, failed) => {
    const request = https.request(base + path, { method, agent, headers: { authorization: `Bearer ${token}`, 'content-type': type } }, (answer) => {
      let text = '';
      answer.on('data', (d) => (text += d));
      answer.on('end', () => (answer.statusCode < 300 ? done(path === '/metrics' ? text : JSON.parse(text)) : failed(Object.assign(new Error(`${method} ${path}: ${answer.statusCode} ${text}`), { code: answer.statusCode }))));
    });
    request.on('error', failed);
    request.end(body && JSON.stringify(body));
  });
const load = () => `load ${loadavg()[0].toFixed(1)}`;

const made = await call('GET', '/query/shop.example.com/v1/pizzas?limit=0').catch(() => ({ totalItems: 0 }));
if (!made.totalItems) await call('POST', '/apis/apiextensions.k8s.io/v1/customresourcedefinitions', {
  apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: { name: 'pizzas.shop.example.com' },
  spec: {
    group: 'shop.example.com', scope: 'Namespaced', names: { plural: 'pizzas', singular: 'pizza', kind: 'Pizza' },
    versions: [{
      name: 'v1', served: true, storage: true,
      schema: { openAPIV3Schema: { type: 'object', properties: { spec: { type: 'object', properties: { cost: { type: 'number' }, size: { type: 'string' }, note: { type: 'string' }, toppings: { type: 'array', items: { type: 'string' } } } } } } },
      additionalPrinterColumns: [{ name: 'Cost', type: 'number', jsonPath: '.spec.cost' }, { name: 'Size', type: 'string', jsonPath: '.spec.size' }, { name: 'First', type: 'string', jsonPath: '.spec.toppings[0]' }, { name: 'Age', type: 'date', jsonPath: '.metadata.creationTimestamp' }],
    }],
  },
});
const path = '/apis/shop.example.com/v1/namespaces/default/pizzas';
const toppings = ['basil', 'olive', 'tuna', 'ham', 'onion', 'rocket', 'caper'];
const one = (i) => ({
  apiVersion: 'shop.example.com/v1', kind: 'Pizza',
  metadata: { name: `pizza-${String(i).padStart(6, '0')}`, labels: { team: ['red', 'blue', 'green'][i % 3], tier: i % 10 ? 'usual' : 'fine' } },
  spec: { cost: (i * 7919) % 50_021, size: i % 4 ? 'small' : 'large', note: `oven ${i % 97}, table ${i % 1009}`, toppings: [toppings[i % 7], toppings[(i >> 3) % 7]] },
});
let next = made.totalItems;
const begun = Date.now();
const writer = async () => {
  while (next < objects) {
    const i = next++;
    for (;;)
      try {
        await call('POST', path, one(i));
        break;
      } catch (error) {
        if (error.code !== 404 && error.code !== 429) throw error; // the definition is not served yet
      }
  }
};
await Promise.all(Array.from({ length: 48 }, writer));
if (!made.totalItems) console.log(`${objects.toLocaleString('en')} objects in ${((Date.now() - begun) / 1000).toFixed(0)} s; ${load()}`);

const pages = Math.ceil(objects / 50);
const questions = {
  'the first page': '',
  [`page ${pages}`]: `page=${pages}`,
  'sorted by a field': 'sortBy=spec.cost&ascending=false',
  'sorted by a field, in the middle': `sortBy=spec.cost&page=${pages >> 1}`,
  'sorted by a printed column': 'sortBy=column:First',
  'one field': 'spec.size=large',
  'one label': 'labelSelector=team=red',
  'words': 'q=tuna',
  'words that few have': 'q=pizza-04213',
  'label and field': 'labelSelector=team=red&spec.size=large',
  'label, field and words, sorted': 'labelSelector=team=red&spec.size=large&q=tuna&sortBy=spec.cost',
  'the labels that there are': 'facets=labels',
};
const ask = async (q, part = 'limit=50&columns=true&fields=metadata.name,metadata.labels,metadata.creationTimestamp') => {
  const t = performance.now();
  for (;;)
    try {
      await call('GET', `/query/shop.example.com/v1/namespaces/default/pizzas?${q.includes('facets') ? 'limit=0' : part}${q && '&'}${q}`);
      return performance.now() - t;
    } catch (error) {
      if (!/ServerTimeout/.test(error.message)) throw error; // a busy machine has not read all objects within a minute
    }
};
const used = async () => Number((await call('GET', '/metrics')).match(/^process_cpu_seconds_total (\S+)$/m)[1]) * 1000;
console.log('the query API, in ms: at first, after a write, and again (median, worst and processor time of 20)');
for (const [name, q] of Object.entries(questions)) {
  const first = await ask(q);
  const changed = [];
  for (let i = 0; i < 5; i++) {
    await call('PATCH', `${path}/${one(i).metadata.name}`, { spec: { cost: Math.random() } }, 'application/merge-patch+json');
    changed.push(await ask(q));
  }
  const all = [];
  const before = await used();
  for (let i = 0; i < 20; i++) all.push(await ask(q));
  const median = (a) => a.sort((x, y) => x - y)[a.length >> 1].toFixed(0).padStart(5);
  const each = ((await used()) - before) / all.length;
  console.log(`${median([first])} ${median(changed)} ${median(all)} ${all.at(-1).toFixed(0).padStart(5)} ${each.toFixed(0).padStart(5)}  ${name}; ${load()}`);
}

if (chromium) {
  const browser = await launch({ protocolTimeout: 120_000 });
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 800 });
  await page.goto(base + '/console/', { waitUntil: 'domcontentloaded' });
  await page.locator('::-p-aria([name="Token"])').fill(token);
  await page.locator('::-p-aria([name="Sign in with the token"][role="button"])').click();
  await page.waitForSelector('nav.side');
  const pizzas = '#/k/shop.example.com/v1/pizzas?ns=default';
  // until waits for the rows of an answer, counted from the change of the address, and to be painted.
  const until = (hash) =>
    page.evaluate(
      async (h) => {
        const begun = performance.now();
        const region = () => document.querySelector('[role=region][aria-busy]');
        location.hash = h;
        const frame = () => new Promise((r) => requestAnimationFrame(r));
        await frame();
        await frame();
        while (!region() || region().getAttribute('aria-busy') !== 'false') {
          if (performance.now() - begun > 30_000) throw new Error(`${h} is not shown`);
          await frame();
        }
        await frame();
        return [performance.now() - begun, document.querySelector('.tools [role=status]:last-child')?.textContent, document.querySelector('tbody a.to')?.textContent];
      },
      hash,
    );
  console.log('the console, in ms from the change of the address to the painted rows (median and worst of 7)');
  await until(pizzas);
  const views = { 'sorted by a field': '&sort=-spec.cost', 'its middle page': `&sort=-spec.cost&page=${pages >> 1}`, 'sorted by a printed column': '&sort=column:First', 'one field': '&f=spec.size~~large', 'one label': '&labels=team%3Dred', words: '&q=tuna', 'label and field': '&labels=team%3Dred&f=spec.size~~large', 'label, field and words, sorted': '&labels=team%3Dred&f=spec.size~~large&q=tuna&sort=spec.cost' };
  for (const [name, more] of Object.entries(views)) {
    const times = [];
    let shown;
    for (let i = 0; i < 7; i++) {
      await until(pizzas);
      const [time, ...what] = await until(pizzas + more);
      times.push(time);
      shown = what;
    }
    times.sort((a, b) => a - b);
    console.log(`${times[3].toFixed(0).padStart(5)} ${times[6].toFixed(0).padStart(5)}  ${name}: ${shown.join(', ')}; ${load()}`);
  }
  await browser.close();
}
await server.stop();
agent.destroy();
rmSync(dir, { recursive: true, force: true });
