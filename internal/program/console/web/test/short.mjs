// The short path through the console, in a headless Chromium, which every change runs: make console-short. It waits for
// conditions and measures no time, so that a busy machine makes it slow and nothing else.
//
//   node short.mjs PROGRAM [folder for screenshots]
//
// PROGRAM is the annex tool or internal/testing/plane, whose "serve" it starts. With a folder, pictures of the pages are put there.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import https from 'node:https';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { begin, failed as pictured, hands, launch, looked as lookedAt, looks, needChromium, patience } from './looks.mjs';

const [program, shots] = process.argv.slice(2).map((path) => resolve(path));
needChromium();
const token = 'ada-0123456789abcdef';
const dir = mkdtempSync(join(tmpdir(), 'console-'));
writeFileSync(join(dir, 'tokens.csv'), `${token},ada,1,"system:masters"\n`, { mode: 0o600 });
const args = ['serve', '--data-dir', join(dir, 'data'), '--secure-port', '0', '--token-auth-file', join(dir, 'tokens.csv'), '--history-of', 'pizzas.shop.example.com=720h'];
const server = await begin(program, args, { cwd: dir, env: { ...process.env, TMPDIR: dir } });
const { base } = server;
const agent = new https.Agent({ keepAlive: true, maxSockets: 8, rejectUnauthorized: false }); // the server's authority is its own
const call = (method, path, body, type = 'application/json') =>
  new Promise((done, failed) => {
    const request = https.request(base + path, { method, agent, headers: { authorization: `Bearer ${token}`, 'content-type': type, 'user-agent': 'kitchen' } }, (answer) => {
      let text = '';
      answer.on('data', (d) => (text += d));
      answer.on('end', () => (answer.statusCode < 300 ? done(JSON.parse(text)) : failed(Object.assign(new Error(`${method} ${path}: ${answer.statusCode} ${text}`), { code: answer.statusCode }))));
    });
    request.on('error', failed);
    request.end(body && JSON.stringify(body));
  });

const browser = await launch({ protocolTimeout: 120_000 });
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 800 });
await page.emulateMediaFeatures([{ name: 'prefers-reduced-motion', value: 'reduce' }]);
const wrong = [];
page.on('pageerror', (e) => wrong.push(`error in the page: ${e.message}`));
page.on('console', (m) => /Content.Security.Policy/i.test(m.text()) && wrong.push(m.text()));
const { see, press, label } = hands(page);
const fill = (name, text) => page.locator(`::-p-aria([name="${name}"])`).setTimeout(patience.timeout).fill(text);
const clear = async () => {
  await page.$eval('input.words', (e) => (e.focus(), e.select()));
  await page.keyboard.press('Backspace');
};
const at = (hash) => page.evaluate((h) => (location.hash = h), hash);
const hash = (want) => page.waitForFunction((w) => decodeURIComponent(location.hash).includes(w), patience, want);
const firstIs = (name) =>
  page.waitForFunction((n) => document.querySelector('tbody a.to')?.textContent === n, patience, name).catch(async () => {
    throw new Error(`the first row is ${await page.evaluate(() => location.hash + ' ' + document.querySelector('tbody tr')?.innerText)}, want ${name}`);
  });
const looked = (name) => lookedAt(page, name, shots);

const definition = {
  apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: { name: 'pizzas.shop.example.com' },
  spec: {
    group: 'shop.example.com', scope: 'Namespaced', names: { plural: 'pizzas', singular: 'pizza', kind: 'Pizza', shortNames: ['pz'] },
    versions: [{
      name: 'v1', served: true, storage: true, subresources: { status: {} },
      schema: { openAPIV3Schema: { type: 'object', properties: {
        spec: { type: 'object', properties: { cost: { type: 'number', description: 'in euros' }, size: { type: 'string', enum: ['small', 'large'] }, toppings: { type: 'array', items: { type: 'string' } } } },
        status: { type: 'object', properties: { conditions: { type: 'array', items: { type: 'object', properties: { type: { type: 'string' }, status: { type: 'string' }, reason: { type: 'string' } } } } } },
      } } },
      additionalPrinterColumns: [{ name: 'Cost', type: 'number', jsonPath: '.spec.cost' }, { name: 'Size', type: 'string', jsonPath: '.spec.size' }, { name: 'First', type: 'string', jsonPath: '.spec.toppings[0]' }, { name: 'Age', type: 'date', jsonPath: '.metadata.creationTimestamp' }],
    }],
  },
};
const pizzas = '#/k/shop.example.com/v1/pizzas';
const path = '/apis/shop.example.com/v1/namespaces/default/pizzas';
const number = (i) => String(i).padStart(3, '0');
const toppings = ['basil', 'olive', 'tuna', 'ham'];

const steps = {
  async 'someone signs in and finds the own kinds first'() {
    await call('POST', '/apis/apiextensions.k8s.io/v1/customresourcedefinitions', definition);
    for (let known = false; !known; ) known = (await call('GET', '/apis/shop.example.com/v1').catch(() => ({ resources: [] }))).resources.length > 0;
    const one = (i) => ({ apiVersion: 'shop.example.com/v1', kind: 'Pizza', metadata: { name: `pizza-${number(i)}`, labels: { team: i % 2 ? 'red' : 'blue' } }, spec: { cost: (i * 37) % 120, size: i % 3 ? 'small' : 'large', toppings: [toppings[i % 4]] } });
    const create = async (i) => {
      for (;;)
        try {
          return await call('POST', path, one(i));
        } catch (error) {
          if (error.code !== 404 && error.code !== 429) throw error; // the definition is not served yet
        }
    };
    await create(0);
    await Promise.all(Array.from({ length: 119 }, (_, i) => create(i + 1)));
    await call('PATCH', `${path}/pizza-007/status`, { status: { conditions: [{ type: 'Ready', status: 'False', reason: 'Burnt' }] } }, 'application/merge-patch+json');
    await page.goto(base + '/console/', { waitUntil: 'domcontentloaded' });
    await see('Token');
    await looked('sign-in');
    await fill('Token', token);
    await press('Sign in with the token');
    await see('shop.example.com', 'main .card');
    assert.equal(await page.$eval('main .card h2', (e) => e.textContent), 'shop.example.com');
    await see('120', 'main .card');
    await see('pizza-007', 'section[aria-label="What fails"]');
    await see('Burnt', 'section[aria-label="What fails"]');
    await see('Requests', 'section[aria-label="The server"]');
    await looked('home');
  },
  async 'a table is sorted, searched and paged, and the address has it all'() {
    await at(pizzas);
    await see('120 objects');
    await firstIs('pizza-000');
    await press('Cost');
    await firstIs('pizza-000');
    await press('Cost');
    await hash('sort=-spec.cost');
    await firstIs('pizza-107');
    await press('First');
    await hash('sort=column:First');
    await press('Next');
    await hash('page=2');
    await fill('Filter pizzas', 'tuna');
    await see('30 objects');
    await clear();
    // As fast as the address takes the words.
    await page.type('input.words', 'pizza-01 basil', { delay: 160 });
    assert.equal(await page.$eval('input.words', (e) => e.value), 'pizza-01 basil');
    await see('2 objects');
    await fill('Filter pizzas', 'team=red');
    await see('60 objects');
    await clear();
    await see('120 objects');
    await fill('Filter by labels', 'team=blue');
    await page.keyboard.press('Enter');
    await see('60 objects');
    await hash('labels=team=blue');
    await press('Copy as …');
    await see('pizzas?labelSelector=team%3Dblue&limit=50&page=1&sortBy=column%3AFirst', 'dialog');
    await looked('copy-as');
    await press('Close');
    await page.reload();
    await see('60 objects');
    await page.goBack();
    await see('120 objects');
    await at(pizzas);
    await see('120 objects');
    await looked('table');
  },
  async 'it follows what happens'() {
    await at(`${pizzas}?q=late`);
    await see('0 objects');
    await call('POST', path, { apiVersion: 'shop.example.com/v1', kind: 'Pizza', metadata: { name: 'late' }, spec: { cost: 1 } });
    await firstIs('late');
    await call('DELETE', `${path}/late`);
    await see('0 objects');
  },
  async 'many are labelled and deleted at once, after a question that names their number'() {
    await at(`${pizzas}?q=large`);
    await see('40 objects');
    await page.locator('::-p-aria([name="Select this page"])').click();
    await see('40 selected');
    await press('Label…');
    await see('Label 40 pizzas', 'dialog');
    await page.type('dialog input[placeholder="team"]', 'big');
    await page.type('dialog .labelled:nth-of-type(2) input', 'yes');
    await looked('bulk');
    await press('Set for 40 pizzas');
    await see('40 of 40 labelled', 'dialog');
    await press('Close');
    await at(`${pizzas}?labels=${encodeURIComponent('big=yes')}`);
    await see('40 objects');
    await press('Copy as …');
    await see('kubectl get pizzas.shop.example.com --all-namespaces --selector=big=yes', 'dialog');
    await press('Close');
    await page.locator('::-p-aria([name="Select pizza-000"])').click();
    await page.locator('::-p-aria([name="Select pizza-003"])').click();
    await press('Delete…');
    await see('Delete 2 pizzas?', 'dialog');
    await page.locator('dialog ::-p-text(Copy as …)').click();
    await see('This is the first of 2 requests', 'dialog dialog');
    await see('kubectl delete pizzas.shop.example.com pizza-000', 'dialog dialog');
    await page.keyboard.press('Escape');
    await press('Delete 2 pizzas');
    await see('2 of 2 deleted', 'dialog');
    await press('Close');
    await see('38 objects');
  },
  async 'what a filter selects is exported'() {
    await page.evaluate(() => {
      globalThis.exported = [];
      const make = URL.createObjectURL;
      URL.createObjectURL = (blob) => (void blob.text().then((t) => globalThis.exported.push(t)), make.call(URL, blob));
    });
    await page.locator('::-p-text(Export)').click();
    await press('All 38 as CSV');
    await page.waitForFunction(() => globalThis.exported.length === 1, patience);
    const csv = (await page.evaluate(() => globalThis.exported[0])).trim().split('\n');
    assert.equal(csv[0], 'Namespace,Name,Cost,Size,First,Age');
    assert.equal(csv.length, 39);
    assert.match(csv[1], /^default,pizza-006,\d+,large,tuna,20\d\d-/);
    await press('All 38 as YAML');
    await page.waitForFunction(() => globalThis.exported.length === 2, patience);
    assert.equal((await page.evaluate(() => globalThis.exported[1])).match(/^---$/gm).length, 38);
  },
  async 'keys lead everywhere, and are left alone in fields'() {
    await at(pizzas);
    await see('118 objects');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('o');
    await hash('open=default/pizza-002');
    await see('toppings', '.panel');
    await looked('panel');
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => !location.hash.includes('open='), patience);
    await page.keyboard.press('/');
    await page.waitForFunction(() => document.activeElement.matches('input.words'), patience);
    await page.keyboard.type('j?:');
    assert.equal(await page.$eval('input.words', (e) => e.value), 'j?:');
    assert.equal(await page.$('dialog'), null);
    await clear();
    await see('118 objects');
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press(':');
    await page.waitForSelector('dialog input', patience);
    await page.keyboard.type('pz');
    await see('Pizza', '.found [aria-selected="true"]');
    await page.keyboard.press('Escape');
    await page.keyboard.down('Control');
    await page.keyboard.press('k');
    await page.keyboard.up('Control');
    await page.waitForSelector('dialog input', patience);
    await page.locator('dialog input').fill('pizza-042');
    await see('pizza-042', '.found [aria-selected="true"]');
    await looked('palette');
    await page.keyboard.press('Enter');
    await hash('/o/shop.example.com/v1/pizzas/default/pizza-042');
    await page.keyboard.press('?');
    await see('the filter of the table', 'dialog');
    await looked('keys');
    await press('Close');
  },
  async 'the first row is a few Tabs away, and the content begins at the top of a narrow screen'() {
    await at(pizzas);
    await see('118 objects');
    await page.reload();
    await see('118 objects');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'pizza-001');
    await page.setViewport({ width: 390, height: 844 });
    const top = await page.$eval('h1', (e) => e.getBoundingClientRect().top);
    assert.ok(top < 130, `the content begins at ${top}`);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > 390), false, 'the page is wider than the screen');
    await press('Menu');
    await see('Pizza', 'nav.side');
    await page.setViewport({ width: 1280, height: 800 });
  },
  async 'an object and its form'() {
    await at('#/o/shop.example.com/v1/pizzas/default/pizza-042');
    await see('toppings', 'pre');
    await looked('object');
    await at('#/o/shop.example.com/v1/pizzas/default/pizza-042/owners');
    await see('It has no owner');
    await see('Owners');
    assert.doesNotMatch(await page.evaluate(() => document.querySelector('main').innerText), /more than/);
    await at('#/new/shop.example.com/v1/pizzas?ns=default');
    await see('cost', '.form');
    await looked('new');
  },
  async 'an edit is compared, saved, undone and restored by the history of the server'() {
    const pizza = '#/o/shop.example.com/v1/pizzas/default/pizza-042';
    const cost = async () => (await call('GET', `${path}/pizza-042`)).spec.cost;
    const before = await cost();
    await at(pizza + '/edit');
    await label('cost', '5');
    await looked('edit');
    await press('YAML');
    await see('cost: 5', '.cm-content');
    await looked('yaml');
    await press('Review and save');
    await see('spec.cost', 'dialog .differences');
    await looked('difference');
    await page.locator('dialog .take-over input').click();
    await page.locator('dialog button.primary').click();
    await see('was saved');
    assert.equal(await cost(), 5);
    await at(pizza + '/history');
    await see('Kept since', 'main');
    await see('changed it', '.history');
    await see('as ada (in the console)', '.history');
    await see('spec.cost', '.history');
    await looked('history');
    const edited = await page.$eval('.history li', (e) => e.querySelector('[aria-label^="Undo"]').getAttribute('aria-label').split(' ').at(-1));
    await press(`Undo revision ${edited}`);
    await see('spec.cost', 'dialog .differences');
    await looked('undo');
    await page.locator('dialog button.primary').click();
    await see(`Revision ${edited} was undone`);
    assert.equal(await cost(), before);
    await press(`Restore revision ${edited}`);
    await see('spec.cost', 'dialog .differences');
    await page.locator('dialog button.primary').click();
    await see(`pizza-042 is as it was in revision ${edited}`);
    assert.equal(await cost(), 5);
    // The undo of a change whose field has been changed since is refused.
    await call('PATCH', `${path}/pizza-042`, { spec: { cost: 6 } }, 'application/merge-patch+json');
    await press(`Undo revision ${edited}`);
    await see('It has been changed since', 'dialog');
    await press('Copy as …');
    await see(`kubectl annex undo pizzas.shop.example.com/pizza-042 --namespace=default --revision=${edited}`, 'dialog dialog');
    await page.keyboard.press('Escape');
    await press('Cancel');
    assert.equal(await cost(), 6);
  },
  async 'a deleted object is found at its address, and restored from its history'() {
    const pizza = '#/o/shop.example.com/v1/pizzas/default/pizza-041';
    await call('DELETE', `${path}/pizza-041`);
    await at(pizza);
    await see('deleted it', '.history');
    await looked('deleted');
    const deleted = await page.$eval('.history li [aria-label^="Restore"]', (e) => e.getAttribute('aria-label').split(' ').at(-1));
    assert.equal(await page.$('[aria-label^="Undo"]'), null);
    await press(`Restore revision ${deleted}`);
    await see('cost: 77', 'dialog .differences');
    await page.locator('dialog button.primary').click();
    await see(`pizza-041 is as it was in revision ${deleted}`);
    assert.equal((await call('GET', `${path}/pizza-041`)).spec.cost, (41 * 37) % 120);
    // It is followed again.
    await call('PATCH', `${path}/pizza-041`, { spec: { toppings: ['capers'] } }, 'application/merge-patch+json');
    await see('capers', 'pre');
  },
  async 'a Secret is covered, and the requests are listed'() {
    await call('POST', '/api/v1/namespaces/default/secrets', { apiVersion: 'v1', kind: 'Secret', metadata: { name: 'oven' }, stringData: { word: 'open sesame' } });
    await at('#/o/core/v1/secrets/default/oven');
    await see('11 bytes', '.secret');
    assert.doesNotMatch(await page.evaluate(() => document.querySelector('main').innerText), /sesame/);
    await looked('secret');
    await at('#/requests');
    await see('ada', 'tbody');
    await see('pizzas.shop.example.com', 'tbody');
    await press('Pause');
    await looked('requests');
  },
};

let failed = 0;
const all = Date.now();
try {
  for (const [name, run] of Object.entries(steps)) {
    const begun = Date.now();
    try {
      await run();
      assert.deepEqual(wrong.splice(0), [], 'what the browser complains of');
      console.log(`ok    ${name} (${Date.now() - begun} ms)`);
    } catch (error) {
      failed++;
      console.log(`FAIL  ${name}\n${error instanceof Error ? error.message : error}\n`);
      await pictured(page, failed, shots);
      break; // later steps go on where earlier ones ended
    }
  }
} finally {
  await browser.close();
  await server.stop();
  agent.destroy();
  rmSync(dir, { recursive: true, force: true });
}
console.log(failed ? `the short path failed` : `${Object.keys(steps).length} steps, ${looks()} looks of axe without a violation, in ${((Date.now() - all) / 1000).toFixed(0)} s`);
process.exit(failed ? 1 : 0);
