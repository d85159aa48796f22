// The page in a headless Chromium, against the sample's own server: node test.mjs PROGRAM, which is bin/restaurant by default.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { extname, join, resolve } from 'node:path';
import puppeteer from 'puppeteer-core';

const chromium = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
if (!chromium) {
  console.log('chromium is not installed: the page is not tested in a browser (Debian: apt-get install chromium)');
  process.exit(0);
}
const program = resolve(process.argv[2] ?? '../bin/restaurant');
const dir = mkdtempSync(join(tmpdir(), 'restaurant-web-'));
const token = 'ada-0123456789abcdef';
writeFileSync(join(dir, 'tokens.csv'), `${token},ada,1,"system:masters"\n`, { mode: 0o600 });

// The page is of another origin than the server.
const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css' };
const pages = createServer((request, response) => {
  const name = request.url === '/' ? '/index.html' : request.url.split('?')[0];
  const file = join(import.meta.dirname, 'dist', name);
  if (name.includes('..') || !existsSync(file)) return response.writeHead(404).end();
  response.writeHead(200, { 'Content-Type': types[extname(file)] ?? 'text/plain' }).end(readFileSync(file));
});
await new Promise((ready) => pages.listen(0, '127.0.0.1', ready));
const origin = `http://127.0.0.1:${pages.address().port}`;

let printed = '';
const server = spawn(program, ['serve', '--data-dir', join(dir, 'data'), '--secure-port', '0', '--storage', 'memory', '--token-auth-file', join(dir, 'tokens.csv'), '--cors-allowed-origins', `^${origin.replaceAll('.', '\\.')}$`]);
const address = await new Promise((ready, reject) => {
  server.stderr.on('data', (d) => (printed += d));
  server.stdout.on('data', (d) => {
    printed += d;
    const found = printed.match(/listens on (https:\S+)/);
    if (found && printed.includes('try: ')) ready(found[1]);
  });
  server.on('exit', (code) => reject(new Error(`the server has ended with ${code}:\n${printed}`)));
  setTimeout(() => reject(new Error(`the server is not ready:\n${printed}`)), 60_000).unref();
});
const browser = await puppeteer.launch({ executablePath: chromium, headless: true, acceptInsecureCerts: true, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
const patience = { timeout: 60_000 };
let failed = false;
try {
  const page = await browser.newPage();
  const wrong = [];
  page.on('pageerror', (e) => wrong.push(e.message));
  const see = (text, selector = 'body') =>
    page.waitForFunction((t, s) => [...document.querySelectorAll(s)].some((e) => e.innerText.includes(t)), patience, text, selector).catch(async () => {
      throw new Error(`${selector} does not show ${JSON.stringify(text)}, but\n${await page.evaluate(() => document.body.innerText)}`);
    });
  const press = (name) => page.locator(`::-p-aria([name="${name}"][role="button"])`).setTimeout(patience.timeout).click();
  const fill = (name, text) => page.locator(`::-p-aria([name="${name}"])`).setTimeout(patience.timeout).fill(text);
  // A request that does not come from the page.
  const ask = (path, method = 'GET', body) =>
    page.evaluate(
      async (url, init) => {
        const response = await fetch(url, init);
        return response.status;
      },
      address + path,
      { method, headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }, ...(body ? { body: JSON.stringify(body) } : {}) },
    );
  const topping = (name, cost) => ({ apiVersion: 'restaurant.wukong.com/v1beta1', kind: 'Topping', metadata: { name }, spec: { cost } });

  await page.goto(`${origin}/#server=${address}`);
  await fill(`Token for ${address}`, 'wrong');
  await press('Sign in');
  await see('does not accept the token', '[role=alert]');
  await press('Sign in again');
  await fill(`Token for ${address}`, token);
  await press('Sign in');
  await see('live, 0 pizzas');

  // Toppings appear in the form as soon as others make them.
  for (const [name, cost] of [['cheese', 2], ['ham', 3]]) assert.equal(await ask('/apis/restaurant.wukong.com/v1beta1/toppings', 'POST', topping(name, cost)), 201);
  await see('ham', 'fieldset');

  // An order gets its price from the controller.
  await fill('Name', 'hawaii');
  await page.locator('::-p-aria([name="cheese"][role="checkbox"])').click();
  await page.locator('::-p-aria([name="ham"][role="checkbox"])').click();
  await press('Order');
  await see('live, 1 pizzas');
  await page.waitForFunction(() => document.querySelector('tbody tr td:nth-child(3)')?.textContent === '5', patience);

  // A refusal names the field.
  await fill('Name', 'No Name');
  await press('Order');
  await see('metadata.name', '[role=alert]');
  await fill('Name', 'anchovy');
  await press('Order');
  await see('live, 2 pizzas');

  // The server sorts.
  const rows = (want) =>
    page.waitForFunction((w) => JSON.stringify([...document.querySelectorAll('tbody tr td:first-child')].map((c) => c.textContent)) === w, patience, JSON.stringify(want));
  await press('Pizza');
  await rows(['anchovy', 'hawaii']);
  await press('Cancel anchovy');
  await rows(['hawaii']);
  assert.equal(await ask('/apis/restaurant.wukong.com/v1beta1/namespaces/default/pizzas/anchovy'), 404);
  assert.deepEqual(wrong, []);

  // A page of an origin that the server does not allow reads nothing.
  const other = await browser.newPage();
  await other.goto(`${origin.replace('127.0.0.1', 'localhost')}/#server=${address}`).catch(() => {});
  const outcome = await other.evaluate((url) => fetch(url).then((r) => r.status, (e) => e.name), `${address}/readyz`);
  assert.equal(outcome, 'TypeError');
  console.log('the page works');
} catch (error) {
  failed = true;
  console.error(error);
} finally {
  await browser.close();
  server.kill('SIGTERM');
  pages.close();
  rmSync(dir, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
