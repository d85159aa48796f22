// The explorer in a headless Chromium, against samples/restaurant.
//
//   node explorer.mjs PROGRAM [folder for screenshots]
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { accessible as accessibleAt, begin, launch, looked as lookedAt, needChromium, patience } from './looks.mjs';

const [program, shots] = process.argv.slice(2).map((path) => resolve(path));
needChromium();
const dir = mkdtempSync(join(tmpdir(), 'explorer-'));
const token = 'ada-0123456789abcdef';
writeFileSync(join(dir, 'tokens.csv'), `${token},ada,1,"system:masters"\n`, { mode: 0o600 });
const server = await begin(program, ['serve', '--data-dir', join(dir, 'data'), '--secure-port', '0', '--storage', 'memory', '--token-auth-file', join(dir, 'tokens.csv')], { cwd: dir });
const { base } = server;
const browser = await launch();
const wrong = [];
let failed = false;
try {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  page.on('pageerror', (e) => wrong.push(`error in the page: ${e.message}`));
  page.on('console', (m) => /Content.Security.Policy/i.test(m.text()) && wrong.push(`policy: ${m.text()}`));
  const loaded = [];
  page.on('request', (r) => {
    loaded.push(r.url());
    if (!r.url().startsWith(base) && !r.url().startsWith('data:')) wrong.push(`a request elsewhere: ${r.url()}`);
  });
  const see = (text, selector = 'body') =>
    page.waitForFunction((t, s) => [...document.querySelectorAll(s)].some((e) => (e.innerText ?? e.textContent).includes(t)), patience, text, selector).catch(async () => {
      throw new Error(`${selector} does not show ${JSON.stringify(text)}, but\n${(await page.evaluate(() => document.body.innerText)).slice(0, 3000)}`);
    });
  const accessible = (what) => accessibleAt(page, what);
  const looked = (name) => lookedAt(page, name, shots);
  const steps = {
    async 'who is not signed in sees how to sign in'() {
      await page.goto(base + '/swagger-ui/', { waitUntil: 'domcontentloaded' });
      await see('Sign in at the console', 'a');
      await looked('explorer-signed-out');
      assert.ok(!loaded.some((url) => url.includes('swagger-ui-bundle')), 'the explorer is loaded before the sign-in');
      await page.locator('input[type=password]').fill('wrong');
      await page.locator('form button').click();
      await see('the server does not accept this token', '[role=alert]');
      await page.locator('input[type=password]').fill(token);
      await page.locator('form button').click();
    },
    async 'all own kinds are one document with the name of the server'() {
      await see('restaurant', '.info .title');
      await see('Pizza (restaurant.wukong.com/v1beta1)', '.opblock-tag');
      const seen = await page.evaluate(() => ({ text: document.body.innerText, tags: [...document.querySelectorAll('.opblock-tag-section')].length, rows: document.querySelectorAll('.opblock').length }));
      assert.equal(seen.tags, 4);
      assert.ok(seen.rows > 40, `${seen.rows} rows`);
      assert.ok(!/CRD Swagger|v0\.1\.0/.test(seen.text));
      assert.ok(!seen.text.includes('/watch/'));
      await see('create a Pizza', '.opblock-summary-description');
      await see('/query/restaurant.wukong.com/v1beta1/pizzas', '.opblock-summary-path');
      await looked('explorer');
    },
    async 'a search keeps the operations with its words'() {
      await page.keyboard.press('/');
      await page.keyboard.type('create pizza v1beta1');
      await page.waitForFunction(() => document.querySelectorAll('.opblock').length === 1, patience);
      await see('create a Pizza', '.opblock-summary-description');
    },
    async 'a sample is sent as the user'() {
      if (!(await page.$('.opblock.is-open'))) await page.locator('.opblock-summary-control').click();
      await page.waitForSelector('.opblock-body .body-param__text', patience);
      const sample = JSON.parse(await page.$eval('.opblock-body .body-param__text', (e) => e.value));
      assert.deepEqual([sample.apiVersion, sample.kind, sample.metadata, sample.status], ['restaurant.wukong.com/v1beta1', 'Pizza', { name: 'my-pizza' }, undefined]);
      await accessible('an operation');
      // The toppings that every pizza has by default.
      for (const name of ['salami', 'mozzarella', 'tomato']) {
        const made = await page.evaluate(
          async (authorization, body) => (await fetch('/apis/restaurant.wukong.com/v1beta1/toppings', { method: 'POST', headers: { authorization, 'content-type': 'application/json' }, body })).status,
          `Bearer ${token}`,
          JSON.stringify({ metadata: { name }, spec: { cost: 1 } }),
        );
        assert.equal(made, 201);
      }
      await page.locator('.body-param__text').fill('{"metadata": {"name": "salami"}}');
      await page.locator('.btn.execute').click();
      await see('201', '.live-responses-table .response-col_status');
      await see('curl', '.curl-command');
      assert.ok(!(await page.evaluate(() => document.body.innerText)).includes(token), 'the page shows the token');
      await looked('explorer-response');
    },
    async 'one document can be chosen'() {
      await page.select('#bar select', 'api/v1');
      await see('restaurant: api/v1', '.info .title');
      await page.reload();
      await see('restaurant: api/v1', '.info .title');
    },
    async 'it fits narrow screens'() {
      await page.setViewport({ width: 390, height: 844 });
      await page.select('#bar select', 'own');
      await see('Pizza', '.opblock-tag');
      const wide = await page.evaluate(() =>
        document.documentElement.scrollWidth <= 391 ? [] : [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 391).map((e) => `${e.tagName}.${e.className} ${Math.round(e.getBoundingClientRect().right)}`),
      );
      assert.deepEqual(wide.slice(0, 12), [], 'the page scrolls sideways');
    },
  };
  for (const [name, step] of Object.entries(steps)) {
    await step().catch((error) => {
      throw new Error(`${name}: ${error.message}`);
    });
    assert.deepEqual(wrong, [], name);
    console.log(`ok  ${name}`);
  }
} catch (error) {
  failed = true;
  console.error(error);
} finally {
  await browser.close();
  await server.stop();
  rmSync(dir, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
