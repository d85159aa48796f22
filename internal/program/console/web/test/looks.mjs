// Chromium, servers of the tests, and looks at their pages: every browser test begins with this module.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import puppeteer from 'puppeteer-core';

export const chromium = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);

// needChromium ends the process, successfully, on a machine without Chromium.
export function needChromium() {
  if (chromium) return;
  console.log('chromium is not installed: the pages are not tested in a browser (Debian: apt-get install chromium)');
  process.exit(0);
}

export const launch = (more = {}) => puppeteer.launch({ executablePath: chromium, headless: true, acceptInsecureCerts: true, args: ['--no-sandbox', '--disable-dev-shm-usage'], ...more });

// begin starts a server. base is its address, and printed() its output until now; stop ends it and waits for its end.
export async function begin(program, args, { cwd, env = process.env }) {
  const running = spawn(program, args, { cwd, env });
  const ended = new Promise((r) => running.on('exit', r));
  process.on('exit', () => running.kill('SIGKILL'));
  let printed = '';
  let log = '';
  running.stderr.on('data', (d) => (log += d));
  const base = await new Promise((ready, reject) => {
    const fail = (how) => reject(new Error(`${program} ${how}:\n${printed}${log}`));
    running.stdout.on('data', (d) => {
      printed += d;
      const address = printed.match(/^console: (https:\S+)\/console\/$/m)?.[1];
      if (address && printed.includes('try: ')) ready(address);
    });
    running.on('error', (error) => fail(`has not started: ${error.message}`));
    running.on('exit', (code) => fail(`has ended with ${code}`));
    setTimeout(() => fail('is not ready'), 60_000).unref();
  });
  return { base, running, printed: () => printed, log: () => log, stop: () => (running.kill('SIGINT'), ended) };
}

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

// accessible fails if axe finds a violation in a page, and returns the number of rules that apply to the page.
export async function accessible(page, what) {
  // By the protocol, to which the policy of the page does not apply.
  await page.evaluate(axe);
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }));
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.target + ' ' + (n.failureSummary ?? '')).slice(0, 3).join('; ')}`), [], `${what} is not accessible`);
  return passes.length;
}

const wide = { width: 1280, height: 800 };
const light = [{ name: 'prefers-color-scheme', value: 'light' }, { name: 'prefers-reduced-motion', value: 'reduce' }];
const dark = [{ name: 'prefers-color-scheme', value: 'dark' }, light[1]];
let axes = 0;

// looked has axe look at a page in both themes and on a narrow screen. With a folder it puts pictures and axe's report there,
// whose lines about other pages stay.
export async function looked(page, name, folder) {
  const lines = [];
  for (const [look, features, size] of [['light', light, wide], ['dark', dark, wide], ['narrow', light, { width: 390, height: 844 }]]) {
    await page.emulateMediaFeatures(features);
    await page.setViewport(size);
    const rules = await accessible(page, `${name}, ${look},`);
    axes++;
    lines.push(`${name}, ${look}: 0 violations of ${rules} rules that apply`);
    if (folder) {
      mkdirSync(folder, { recursive: true });
      await page.screenshot({ path: join(folder, `${name}-${look}.webp`), type: 'webp', quality: 60 });
    }
  }
  await page.emulateMediaFeatures(light);
  await page.setViewport(wide);
  if (!folder) return;
  const report = join(folder, 'axe.txt');
  const others = existsSync(report) ? readFileSync(report, 'utf8').split('\n').filter((l) => l && !l.startsWith(`${name}, `)) : [];
  writeFileSync(report, [...others, ...lines].sort().join('\n') + '\n');
}

// looks is how often axe has looked at a page.
export const looks = () => axes;

// failed puts a picture of a page beside the others, to find out why a test failed.
export async function failed(page, name, folder) {
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `failed-${name}.png`) });
}

// patience is how long a test waits for a condition, on a busy machine too.
export const patience = { timeout: 60_000 };

// hands returns what a person does with a page: see waits for a text, press presses what has a name and a role, and label fills the
// field of a form that has a label.
export function hands(page) {
  const see = (text, selector = 'body') =>
    page.waitForFunction((t, s) => [...document.querySelectorAll(s)].some((e) => e.innerText.includes(t)), patience, text, selector).catch(async () => {
      throw new Error(`${selector} does not show ${JSON.stringify(text)}, but\n${await page.evaluate(() => location.hash + '\n' + document.body.innerText.slice(0, 3000))}`);
    });
  const press = (name, role = 'button') => page.locator(`::-p-aria([name="${name}"][role="${role}"])`).setTimeout(patience.timeout).click();
  const label = async (text, value) => {
    const id = await (await page.waitForFunction((t) => [...document.querySelectorAll('.form label')].find((l) => l.textContent.replace(' *', '') === t)?.htmlFor, patience, text)).jsonValue();
    await page.locator(`[id="${id}"]`).setTimeout(patience.timeout).fill(value);
  };
  return { see, press, label };
}
