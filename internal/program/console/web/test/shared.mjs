// What the browser tests have in common: servers with their data, a headless Chromium, and what is seen and
// done in its page.
//
// Each is run as node FILE FOLDER [folder for screenshots]. FOLDER has the programs cicd, annex, theatre (of e2e)
// and kubectl.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import * as looks from './looks.mjs';

export const [programs, shots] = process.argv.slice(2).map((path) => resolve(path));
looks.needChromium();
export const dir = mkdtempSync(join(tmpdir(), 'console-'));
export const token = { ada: 'ada-0123456789abcdef', vic: 'vic-0123456789abcdef' };
writeFileSync(join(dir, 'tokens.csv'), `${token.ada},ada,1,"system:masters"\n${token.vic},vic,2,"viewers"\n`, { mode: 0o600 });
export const password = { grace: 'correct horse battery', jane: 'staple of the day' };

const servers = [];

// serve begins a server of which kubectl asks as its administrator.
export async function serve(program, prepare = () => {}) {
  const home = join(dir, program);
  mkdirSync(join(home, 'tmp'), { recursive: true });
  prepare(home);
  const args = ['serve', '--data-dir', join(home, 'data'), '--secure-port', '0', '--token-auth-file', join(dir, 'tokens.csv')];
  const server = await looks.begin(join(programs, program), args, { cwd: home, env: { ...process.env, TMPDIR: join(home, 'tmp') } });
  servers.push(server);
  const kubectl = (args, input) => execFileSync(join(programs, 'kubectl'), ['--kubeconfig', join(home, 'data', 'kubeconfig'), ...args], { input, encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'] });
  return { home, base: server.base, kubectl, stop: server.stop };
}

// What would run if it were markup, an expression or a link.
export const evil = `<img src=x onerror="console.log('XSS img')"><script>console.log('XSS script')</script>"'>{{7*7}}\${7*7}[link](javascript:console.log('XSS'))<svg onload="console.log('XSS svg')">`;
export const unharmed = async () => {
  assert.equal(await page.evaluate(() => document.querySelectorAll('#app script, #app img, #app iframe, #app object, #app [onerror], #app [onload], a[href^="javascript:"]').length), 0, 'markup of an object is in the page');
  assert.equal(await page.evaluate(() => ({}).polluted), undefined);
};

export const browser = await looks.launch();
export const patience = { timeout: 60_000 };
export const wrong = []; // what a browser complains of, of all pages
export let page;
export let base = ''; // of the server whose page is open

// open begins a page in a context of its own, as another browser would.
export async function open(path = '/console/', server) {
  base = server.base;
  const context = await browser.createBrowserContext();
  page = await context.newPage();
  await page.setViewport({ width: 1280, height: 800 });
  page.on('pageerror', (e) => wrong.push(`error in the page: ${e.message}`));
  page.on('console', (m) => {
    const text = m.text();
    if (/Content.Security.Policy/i.test(text)) wrong.push(`policy: ${text}`);
    if (text.startsWith('XSS')) wrong.push(text);
  });
  page.on('dialog', (d) => {
    wrong.push(`a dialog: ${d.message()}`);
    void d.dismiss();
  });
  page.on('request', (r) => {
    if (!r.url().startsWith(server.base) && !r.url().startsWith('data:') && !r.url().startsWith(server.base.replace('https', 'wss'))) wrong.push(`a request elsewhere: ${r.url()}`);
  });
  await page.goto(base + path, { waitUntil: 'domcontentloaded' });
  return page;
}
// turnTo makes a page that open has given the one that the rest is done in.
export function turnTo(other) {
  page = other;
}
export const see = (text, selector = 'body') =>
  page.waitForFunction((t, s) => [...document.querySelectorAll(s)].some((e) => (e.innerText ?? e.textContent).includes(t)), patience, text, selector).catch(async () => {
    throw new Error(`${selector} does not show ${JSON.stringify(text)}, but\n${await page.evaluate(() => document.body.innerText)}`);
  });
export const unseen = (text, selector = 'body') =>
  page.waitForFunction((t, s) => ![...document.querySelectorAll(s)].some((e) => e.innerText.includes(t)), patience, text, selector);
export const press = (name, role = 'button') => page.locator(`::-p-aria([name="${name}"][role="${role}"])`).setTimeout(patience.timeout).click();
export const fill = (name, text) => page.locator(`::-p-aria([name="${name}"])`).setTimeout(patience.timeout).fill(text);
// field finds what a label is of, whatever marks the label has.
export const field = async (label) => {
  const id = await (await page.waitForFunction((t) => [...document.querySelectorAll('.form label')].find((l) => l.textContent.replace(' *', '') === t)?.htmlFor, patience, label)).jsonValue();
  return page.locator(`[id="${id}"]`).setTimeout(patience.timeout);
};
export const at = (hash) => page.evaluate((h) => (location.hash = h), hash);
export const looked = (name) => looks.looked(page, name, shots);
export const signIn = async (who) => {
  await fill('Token', who);
  await press('Sign in with the token');
  await page.waitForSelector('nav.side', patience);
};
export const byPassword = async (who, text = password[who]) => {
  await fill('User name', who);
  await fill('Password', text);
  await press('Sign in');
};
export const rows = () => page.$$eval('tbody tr', (all) => all.map((tr) => [...tr.querySelectorAll('td:not(.check)')].map((td) => td.textContent.trim())));
export const rowsAre = (want, column = 0) =>
  page.waitForFunction((w, c) => JSON.stringify([...document.querySelectorAll('tbody tr')].map((tr) => tr.querySelectorAll('td:not(.check)')[c]?.textContent.trim())) === w, patience, JSON.stringify(want), column).catch(async () => {
    throw new Error(`the rows are ${JSON.stringify(await rows())}, want ${JSON.stringify(want)}`);
  });
export const accessible = (what) => looks.accessible(page, what);

// yaml is the text in the editor, as far as it is on the screen.
export const yaml = async () => {
  await page.waitForSelector('.cm-content', patience);
  return page.$$eval('.cm-line', (all) => all.map((l) => l.textContent).join('\n'));
};
export const write = async (text) => {
  await page.waitForSelector('.cm-content', patience);
  await page.focus('.cm-content');
  await page.keyboard.down('Control');
  await page.keyboard.press('a');
  await page.keyboard.up('Control');
  await page.keyboard.sendCharacter(text);
};
export const saved = async () => {
  await press('Review and save');
  await page.waitForSelector('dialog[open] .differences', patience);
  await confirmed();
};
export const confirmed = async () => {
  await page.locator('dialog button.primary').click();
  await closed();
  await see('was saved');
};
export const closed = () => page.waitForFunction(() => !document.querySelector('dialog'), patience);

// run carries out steps in their order, and ends the process.
export async function run(steps) {
  let failed = 0;
  try {
    for (const [name, step] of Object.entries(steps)) {
      const begun = Date.now();
      try {
        await step();
        assert.deepEqual(wrong.splice(0), [], 'what the browser complains of');
        console.log(`ok    ${name} (${Date.now() - begun} ms)`);
      } catch (error) {
        failed++;
        console.log(`FAIL  ${name}\n${error instanceof Error ? error.message : error}\n`);
        if (!page) break;
        await looks.failed(page, failed, shots);
      }
    }
  } finally {
    await browser.close();
    await Promise.all(servers.map((server) => server.stop()));
    rmSync(dir, { recursive: true, force: true });
  }
  console.log(failed ? `${failed} of ${Object.keys(steps).length} steps failed` : `${Object.keys(steps).length} steps in ${execFileSync(looks.chromium, ['--version'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()}`);
  process.exit(failed ? 1 : 0);
}
